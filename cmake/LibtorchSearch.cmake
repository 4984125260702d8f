# Where libtorch is, and how one links it; without libtorch's own CMake package: that one is fatal in a CUDA build
# without a toolkit, may probe for a GPU, and sets flags of its own. Used by the build and, installed beside it, by
# axialConfig.cmake.

# The first folder that holds libtorch's headers and libraries, or "". Looked for in this order: `first` (a list),
# LIBTORCH (CMake or environment), Torch_DIR, CMAKE_PREFIX_PATH (both CMake or environment), then the cache that
# cmake/setup.sh fills.
function(axial_find_libtorch result version first)
  set(roots ${first})
  foreach(value IN ITEMS "${LIBTORCH}" "$ENV{LIBTORCH}")
    if(value)
      list(APPEND roots "${value}" "${value}/torch")
    endif()
  endforeach()
  foreach(value IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(value)
      list(APPEND roots "${value}/../../..")
    endif()
  endforeach()
  set(prefixes "$ENV{CMAKE_PREFIX_PATH}")
  string(REPLACE ":" ";" prefixes "${prefixes}")
  foreach(value IN LISTS CMAKE_PREFIX_PATH prefixes)
    # torch.utils.cmake_prefix_path is <torch>/share/cmake
    list(APPEND roots "${value}" "${value}/../.." "${value}/torch")
  endforeach()
  if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(cache "$ENV{XDG_CACHE_HOME}")
  else()
    set(cache "$ENV{HOME}/.cache")
  endif()
  list(APPEND roots "${cache}/axial/libtorch-${version}/torch")
  set(${result} "" PARENT_SCOPE)
  foreach(root IN LISTS roots)
    if(EXISTS "${root}/include/torch/csrc/api/include/torch/torch.h" AND EXISTS "${root}/lib/libtorch_cpu.so")
      get_filename_component(root "${root}" REALPATH)
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# "2.11.0", as its headers say.
function(axial_libtorch_version result root)
  file(STRINGS "${root}/include/torch/headeronly/version.h" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
  string(REPLACE ";" "." version "${numbers}")
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# The folders that a program's RPATH names. The wheel's libraries look for their own needs beside themselves
# (../nvidia/*/lib); what is not there must come from the program's RPATH (RUNPATH does not serve a library's needs):
# `toolkit`, a list of the CUDA toolkit's folders.
function(axial_runtime_path result root toolkit)
  set(path "${root}/lib")
  file(GLOB nvidia LIST_DIRECTORIES true "${root}/../nvidia/*/lib")
  foreach(folder IN LISTS nvidia toolkit)
    get_filename_component(folder "${folder}" REALPATH)
    list(APPEND path "${folder}")
  endforeach()
  list(REMOVE_DUPLICATES path)
  set(${result} "${path}" PARENT_SCOPE)
endfunction()

# What `target` (an INTERFACE library) needs to compile and link with libtorch. `cudart`: the CUDA runtime's library,
# "" for the CPU alone.
function(axial_use_libtorch target root cudart runtime_path)
  set(lib "${root}/lib")
  target_include_directories(${target} SYSTEM INTERFACE "${root}/include" "${root}/include/torch/csrc/api/include")
  target_compile_options(${target} INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas>)
  target_link_libraries(${target} INTERFACE "${lib}/libtorch_cpu.so" "${lib}/libc10.so")
  # Without it at::parallel_for is a plain loop in whoever includes it. The runtime is libtorch's own: libgomp.so.1. Clang
  # would bring another one.
  target_compile_options(${target} INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fopenmp>)
  target_link_libraries(${target} INTERFACE "${lib}/libgomp.so.1")
  set(rpath_links "")
  foreach(folder IN LISTS runtime_path)
    list(APPEND rpath_links "LINKER:-rpath-link,${folder}")
  endforeach()
  target_link_options(${target} INTERFACE "LINKER:--disable-new-dtags" ${rpath_links})
  if(cudart)
    # Nothing of ours calls a symbol of libtorch_cuda; it registers itself when it is loaded, so the linker
    # must not drop it (some distributions default to --as-needed).
    target_link_options(${target} INTERFACE "LINKER:--no-as-needed")
    target_link_libraries(${target} INTERFACE "${lib}/libtorch_cuda.so" "${lib}/libc10_cuda.so" ${cudart})
  endif()
endfunction()
