# ctest -R install: installs the build, moves the tree, builds a project against it and runs what is in it.
#   cmake -DBUILD=build -DWORK=folder -DGENERATOR=Ninja -DLIBTORCH_ROOT=folder -P install_test.cmake
cmake_minimum_required(VERSION 3.22)

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${what}: ${code}\n${out}\n${err}")
  endif()
  set(out "${out}" PARENT_SCOPE)
  set(err "${err}" PARENT_SCOPE)
endfunction()

function(expect text)
  foreach(part IN LISTS ARGN)
    string(FIND "${text}" "${part}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "'${part}' is not in:\n${text}")
    endif()
  endforeach()
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
run("install" "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/before")
file(RENAME "${WORK}/before" "${WORK}/moved here")
set(tree "${WORK}/moved here")
foreach(file IN ITEMS bin/axial lib/libaxial_torch.so share/axial/configs/smoke.yaml include/axial/kernels/kernels.h
    share/bash-completion/completions/axial share/zsh/site-functions/_axial share/man/man1/axial.1)
  if(NOT EXISTS "${tree}/${file}")
    message(FATAL_ERROR "${file} was not installed")
  endif()
endforeach()
# Where it was built and where it was first put is written nowhere but in where libtorch may be.
file(GLOB package "${tree}/lib/cmake/axial/*.cmake")
foreach(file IN LISTS package)
  file(READ "${file}" text)
  foreach(place IN ITEMS "${BUILD}" "${WORK}")
    string(FIND "${text}" "${place}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${file} names ${place}")
    endif()
  endforeach()
endforeach()

# A consumer without libtorch, to which no place of one is known; then one with it.
set(without "${CMAKE_COMMAND}" -E env --unset=LIBTORCH --unset=Torch_DIR --unset=CMAKE_PREFIX_PATH
  XDG_CACHE_HOME=${WORK}/nothing)
set(consumer -S "${CMAKE_CURRENT_LIST_DIR}" -G "${GENERATOR}" "-DCMAKE_PREFIX_PATH=${tree}")
run("configure without libtorch" ${without} "${CMAKE_COMMAND}" ${consumer} -B "${WORK}/plain")
run("build without libtorch" "${CMAKE_COMMAND}" --build "${WORK}/plain")
run("attend" "${WORK}/plain/attend")
expect("${out}" "attention: ok")
if(NOT BUNDLED)
  execute_process(COMMAND ${without} "${CMAKE_COMMAND}" ${consumer} -B "${WORK}/refused" -DWITH_MODEL=ON
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE err)
  string(REGEX REPLACE "[ \n]+" " " err "${err}")
  expect("${code} ${err}" "axial::model: libtorch" "was not found")
endif()
run("configure" "${CMAKE_COMMAND}" ${consumer} -B "${WORK}/model" -DWITH_MODEL=ON "-DLIBTORCH=${LIBTORCH_ROOT}")
run("build" "${CMAKE_COMMAND}" --build "${WORK}/model")
run("classify" "${WORK}/model/classify")
expect("${out}" "classifier: ok")

# The program, from the moved tree and elsewhere.
file(MAKE_DIRECTORY "${WORK}/elsewhere")
set(axial "${CMAKE_COMMAND}" -E chdir "${WORK}/elsewhere" "${CMAKE_COMMAND}" -E env "LIBTORCH=${LIBTORCH_ROOT}" "${tree}/bin/axial")
run("info" ${axial} info)
expect("${out}" "kernels built for")
run("train" ${axial} train -c smoke -o run train.epochs=1 train.device=cpu train.threads=1 data.synthetic_train=64
  data.synthetic_test=32 data.batch_size=32)
expect("${out}" "\"epochs\":1")
execute_process(COMMAND ${axial} train -c smoky.yaml RESULT_VARIABLE code ERROR_VARIABLE err)
expect("${code} ${err}" "2 axial: error: smoky.yaml: no such file" "moved here/share/axial/configs")
file(MAKE_DIRECTORY "${WORK}/gone")
execute_process(COMMAND sh -c "cd '${WORK}/gone' && rmdir '${WORK}/gone' && '${tree}/bin/axial' info" RESULT_VARIABLE code
  ERROR_VARIABLE err)
expect("${code} ${err}" "1 axial: error: the working folder is not there any more")
file(READ "${tree}/share/man/man1/axial.1" manual)
expect("${manual}" ".SH COMMANDS" "axial explain" "optim.lr" "Exit codes:")

# Where libtorch is not: one line that says where it was looked for. A program that was built beside another libtorch,
# which went away, is one in whose bytes the folder has another name (of the same length).
if(NOT BUNDLED)
  string(REGEX REPLACE ".$" "_" gone "${LIBTORCH_ROOT}")
  run("sed" "${CMAKE_COMMAND}" -E env LC_ALL=C sed -i "s|${LIBTORCH_ROOT}|${gone}|g" "${tree}/bin/axial")
  execute_process(COMMAND ${without} "LIBTORCH=${WORK}/none" "${tree}/bin/axial" info RESULT_VARIABLE code OUTPUT_VARIABLE out
    ERROR_VARIABLE err)
  expect("${code} ${err}" "1 axial: error: libtorch" "moved here/lib/libtorch/lib, ${WORK}/none/lib, ${WORK}/none/torch/lib"
    "${gone}/lib, ${WORK}/nothing/axial/libtorch-" "let LIBTORCH name")
  string(REGEX MATCHALL "\n" lines "${err}")
  list(LENGTH lines count)
  if(NOT count EQUAL 1 OR NOT out STREQUAL "")
    message(FATAL_ERROR "expected one line, found: ${out}${err}")
  endif()
endif()
file(REMOVE_RECURSE "${WORK}")
