# AXIAL_SANITIZE=address (with undefined behaviour) or thread: everything of ours, instrumented. libtorch is not: what
# its libraries do unseen is what tests/sanitizers/*.supp name.
set(AXIAL_SANITIZE "" CACHE STRING "Instrument everything: address (and undefined behaviour) or thread")
set_property(CACHE AXIAL_SANITIZE PROPERTY STRINGS "" address thread)

if(AXIAL_SANITIZE STREQUAL "address")
  # vptr looks into libtorch's classes, whose type information is not exported.
  set(flags -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined)
elseif(AXIAL_SANITIZE STREQUAL "thread")
  set(flags -fsanitize=thread)
elseif(AXIAL_SANITIZE)
  message(FATAL_ERROR "AXIAL_SANITIZE: '${AXIAL_SANITIZE}', expected address, thread or nothing")
endif()
# What runs parallel loops tells ThreadSanitizer where they begin and end.
function(axial_sanitize_programs)
  if(NOT AXIAL_SANITIZE STREQUAL "thread")
    return()
  endif()
  add_library(axial_openmp_regions OBJECT "${PROJECT_SOURCE_DIR}/tests/sanitizers/openmp.cpp")
  target_link_libraries(axial_openmp_regions PRIVATE axial_options)
  foreach(program IN LISTS ARGN)
    if(TARGET ${program})
      target_link_libraries(${program} PRIVATE axial_openmp_regions)
    endif()
  endforeach()
endfunction()

if(AXIAL_SANITIZE)
  target_compile_options(axial_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${flags};-g1;-fno-omit-frame-pointer>")
  target_link_options(axial_options INTERFACE ${flags})
endif()
