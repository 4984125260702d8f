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
set(headers kernels/kernels.h kernels/pass.h kernels/mlp.h kernels/tokens.h kernels/philox.h)
foreach(name attention attention_map block classifier core gradcheck mlp options pass random reference stem)
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
  # Libraries of the system (below /lib and /usr/lib) stay the system's. cuDNN opens its parts by name.
  set(roots "${AXIAL_LIBTORCH_ROOT}/lib/libtorch_cpu.so" "${AXIAL_LIBTORCH_ROOT}/lib/libc10.so")
  if(AXIAL_HAS_CUDA)
    list(APPEND roots "${AXIAL_LIBTORCH_ROOT}/lib/libtorch_cuda.so" "${AXIAL_LIBTORCH_ROOT}/lib/libc10_cuda.so")
  endif()
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${roots} DIRECTORIES ${AXIAL_RUNTIME_PATH}
      RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing CONFLICTING_DEPENDENCIES_PREFIX twice
      POST_EXCLUDE_REGEXES \"^/lib\" \"^/usr/lib/\" PRE_EXCLUDE_REGEXES \"^libcuda\\\\.so\" \"^libnvidia\")
    foreach(name IN LISTS twice_FILENAMES)
      list(GET twice_\${name} 0 first)
      list(APPEND found \"\${first}\")
    endforeach()
    foreach(library IN LISTS found)
      get_filename_component(folder \"\${library}\" DIRECTORY)
      if(library MATCHES \"libcudnn\\\\.so\")
        file(GLOB parts \"\${folder}/libcudnn_*.so.*\")
        list(APPEND found \${parts})
      endif()
      if(library MATCHES \"libnvrtc\\\\.so\")
        file(GLOB parts \"\${folder}/libnvrtc-builtins.so.*\")
        list(APPEND found \${parts})
      endif()
    endforeach()
    list(APPEND found ${roots})
    list(REMOVE_DUPLICATES found)
    file(INSTALL \${found} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/libtorch/lib\" FOLLOW_SYMLINK_CHAIN)")
  install(DIRECTORY "${AXIAL_LIBTORCH_ROOT}/include" DESTINATION lib/libtorch)
endif()
