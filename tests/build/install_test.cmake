# Installs the build into a folder of its own and builds examples/custom_model against it, alone.
#   cmake -DBUILD=... -DSOURCE=... -DWORK=... -P install_test.cmake
file(REMOVE_RECURSE ${WORK})
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${WORK}/prefix/bin/ductile --version)
run(${CMAKE_COMMAND} -S ${SOURCE}/examples/custom_model -B ${WORK}/build -G Ninja
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${WORK}/prefix
  "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
run(${CMAKE_COMMAND} --build ${WORK}/build -j 1)
run(${WORK}/prefix/bin/ductile train ${SOURCE}/examples/custom_model/job.toml --out ${WORK}/run
  --set model.library=${WORK}/build/libcustom_model.so
  --set data.train_limit=640 --set data.test_limit=64 --set train.epochs=1)
file(REMOVE_RECURSE ${WORK})
