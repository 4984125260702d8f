# `cmake --install build --prefix P`: a tree that works wherever it is moved.
#   bin/axial                        finds libtorch and starts libexec/axial/axial
#   lib/libaxial_{kernels,model}.a, lib/libaxial_torch.so, include/axial/, lib/cmake/axial/
#   share/                           configurations, completions, the manual page
#   lib/libtorch/                    with AXIAL_BUNDLE_LIBTORCH: libtorch and what it needs
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS axial_launcher RUNTIME DESTINATION bin)
install(TARGETS axial RUNTIME DESTINATION libexec/axial)
install(TARGETS axial_torch LIBRARY DESTINATION lib)
install(TARGETS axial_kernels EXPORT axialKernels ARCHIVE DESTINATION lib)
install(TARGETS axial_model EXPORT axialModel ARCHIVE DESTINATION lib)
if(AXIAL_BUNDLE_LIBTORCH)
  set_target_properties(axial PROPERTIES INSTALL_RPATH "$ORIGIN/../../lib/libtorch/lib")
  set_target_properties(axial_torch PROPERTIES INSTALL_RPATH "$ORIGIN/libtorch/lib")
endif()

# Headers call each other by their path in the sources; installed they are below axial/, so that nobody's model/block.h
# is taken for ours.
set(headers kernels/kernels.h kernels/pass.h kernels/pass_cpu.h kernels/mlp.h kernels/tokens.h kernels/philox.h)
foreach(name attention attention_map block classifier core gradcheck mlp options pass random reference rotary stem)
  list(APPEND headers model/${name}.h)
endforeach()
install(CODE "
  foreach(header IN ITEMS ${headers})
    file(READ \"${PROJECT_SOURCE_DIR}/\${header}\" text)
    string(REGEX REPLACE \"#include \\\"(kernels|model)/\" \"#include \\\"axial/\\\\1/\" text \"\${text}\")
    set(to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/include/axial/\${header}\")
    message(STATUS \"Installing: \${to}\")
    file(WRITE \"\${to}\" \"\${text}\")
  endforeach()")

set(package lib/cmake/axial)
install(EXPORT axialKernels NAMESPACE axial:: FILE axialKernelsTargets.cmake DESTINATION ${package})
install(EXPORT axialModel NAMESPACE axial:: FILE axialModelTargets.cmake DESTINATION ${package})
set(AXIAL_CUDART_NAME "")
if(AXIAL_HAS_CUDA)
  set(AXIAL_CUDART_NAME libcudart.so.${CUDAToolkit_VERSION_MAJOR})
endif()
configure_package_config_file(cmake/axialConfig.cmake.in axialConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(axialConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/axialConfig.cmake" "${PROJECT_BINARY_DIR}/axialConfigVersion.cmake"
  cmake/LibtorchSearch.cmake DESTINATION ${package})

file(GLOB configs CONFIGURE_DEPENDS configs/*.yaml)
install(FILES ${configs} configs/README.md DESTINATION share/axial/configs)
# The program writes these itself.
install(CODE "
  function(write_text path)
    set(to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/\${path}\")
    message(STATUS \"Installing: \${to}\")
    execute_process(COMMAND \"$<TARGET_FILE:axial>\" \${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE code)
    if(NOT code EQUAL 0)
      message(FATAL_ERROR \"axial \${ARGN} failed: \${code}\")
    endif()
    file(WRITE \"\${to}\" \"\${text}\")
  endfunction()
  write_text(bash-completion/completions/axial completion bash)
  write_text(zsh/site-functions/_axial completion zsh)
  write_text(man/man1/axial.1 man)")

if(AXIAL_BUNDLE_LIBTORCH)
  install(CODE "
    include(\"${PROJECT_SOURCE_DIR}/cmake/Bundle.cmake\")
    axial_bundled_libraries(files \"${AXIAL_LIBTORCH_ROOT}\" \"${AXIAL_HAS_CUDA}\" \"${AXIAL_RUNTIME_PATH}\")
    file(INSTALL \${files} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/libtorch/lib\" FOLLOW_SYMLINK_CHAIN)")
  install(DIRECTORY "${AXIAL_LIBTORCH_ROOT}/include" DESTINATION lib/libtorch)
endif()
