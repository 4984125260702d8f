# Which files make a copy of libtorch that needs nothing of the machine but its system libraries and the driver. Used
# while installing (AXIAL_BUNDLE_LIBTORCH) and by tests/consumer/bundle_test.cmake.

# result: files, links among them. `root`: libtorch; `cuda`: with its CUDA part; `folders`: where libraries are looked for,
# beside libtorch's own.
function(axial_bundled_libraries result root cuda folders)
  set(names libtorch_cpu.so libc10.so)
  if(cuda)
    # libcaffe2_nvrtc and libtorch_cuda_linalg are opened by name when a run needs them, as are below: cuDNN's parts;
    # the runtime compiler, by cuDNN, cuBLASLt and libtorch; and the compiler's own library.
    list(APPEND names libtorch_cuda.so libc10_cuda.so libcaffe2_nvrtc.so libtorch_cuda_linalg.so)
  endif()
  set(files "")
  foreach(name IN LISTS names)
    list(APPEND files "${root}/lib/${name}")
  endforeach()
  if(cuda)
    foreach(pattern IN ITEMS libcudnn_*.so.* libnvrtc.so.* libnvrtc-builtins.so.*)
      set(parts "")
      foreach(folder IN LISTS folders)
        if(NOT parts)
          file(GLOB parts "${folder}/${pattern}")
        endif()
      endforeach()
      if(NOT parts)
        message(FATAL_ERROR "libtorch cannot be bundled: there is no ${pattern} in ${folders}")
      endif()
      list(APPEND files ${parts})
    endforeach()
  endif()
  # Libraries of the system (below /lib and /usr/lib) stay the system's, libcuda and its like the driver's.
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${files} DIRECTORIES ${folders}
    RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing CONFLICTING_DEPENDENCIES_PREFIX twice
    POST_EXCLUDE_REGEXES "^/lib" "^/usr/lib/" PRE_EXCLUDE_REGEXES "^libcuda\\.so" "^libnvidia")
  if(missing)
    message(FATAL_ERROR "libtorch cannot be bundled: ${missing} was not found in ${folders}")
  endif()
  foreach(name IN LISTS twice_FILENAMES)
    list(GET twice_${name} 0 first)
    list(APPEND found "${first}")
  endforeach()
  list(APPEND files ${found})
  list(REMOVE_DUPLICATES files)
  set(${result} "${files}" PARENT_SCOPE)
endfunction()
