# Commits each kind of layering violation in a scratch folder and expects it to be refused by name.
# Run with -DSOURCE=<repository> -DBINARY=<scratch folder>.
file(REMOVE_RECURSE ${BINARY})
file(MAKE_DIRECTORY ${BINARY})

# check_includes on one file of module `data` (DEPS base spec, below the torch line).
function(check_include line torch expected)
  file(WRITE ${BINARY}/probe.cc "${line}\nint probe;\n")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -DMODULE=data "-DDEPS=base;spec" -DFILES=probe.cc -DTORCH=${torch}
      -DDIR=${BINARY} ${ARGN} -P ${SOURCE}/cmake/check_includes.cmake
    RESULT_VARIABLE result ERROR_VARIABLE text OUTPUT_QUIET)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")  # cmake wraps what it prints
  if(expected STREQUAL "accepted")
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "${line}: should be accepted: ${text}")
    endif()
  elseif(result EQUAL 0 OR NOT text MATCHES "${expected}")
    message(FATAL_ERROR "${line}: should be refused with '${expected}', got ${result}: ${text}")
  endif()
endfunction()

check_include("#include \"ductile/base/error.h\"" FALSE accepted)
check_include("#include \"ductile/data/dataset.h\"" FALSE accepted)
check_include("#include <vector>" FALSE accepted)
check_include("#include \"ductile/train/trainer.h\"" FALSE "includes module 'train'")
check_include("#include <ductile/ckpt/writer.h>" FALSE "includes module 'ckpt'")
check_include("#include <torch/torch.h>" FALSE "below the torch line")
check_include("#include <ATen/core/Tensor.h>" FALSE "below the torch line")
check_include("#include <ATen/core/Tensor.h>" TRUE accepted)
check_include("#include \"dataset.h\"" FALSE "write the full")
check_include("#include \"ductile/data/testing/images.h\"" FALSE "for tests alone")
check_include("#include \"ductile/base/testing.h\"" FALSE "for tests alone")
check_include("#include \"ductile/data/testing/images.h\"" FALSE accepted -DRIGS=TRUE)

# ductile_module with a dependency that is not below it, and with one outside the layer table.
function(check_module name dep expected)
  set(folder ${BINARY}/${name}_on_${dep})
  file(WRITE ${folder}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
include(${SOURCE}/cmake/DuctileModule.cmake)
include(GNUInstallDirs)
add_library(ductile_options INTERFACE)
add_library(ductile_base INTERFACE)
ductile_module(${name} DEPS ${dep} SOURCES probe.cc)
")
  file(WRITE ${folder}/probe.cc "int probe;\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${folder} -B ${folder}/build -G Ninja -DDUCTILE_PCH=OFF
    RESULT_VARIABLE result ERROR_VARIABLE text OUTPUT_QUIET)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")  # cmake wraps what it prints
  if(expected STREQUAL "accepted")
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "${name} on ${dep}: should be accepted: ${text}")
    endif()
  elseif(result EQUAL 0 OR NOT text MATCHES "${expected}")
    message(FATAL_ERROR "${name} on ${dep}: should be refused with '${expected}', got ${text}")
  endif()
endfunction()

check_module(data base accepted)
check_module(data nn "not on a lower layer")
check_module(data ckpt "not on a lower layer")  # same layer
check_module(zoo base "not in the layer table")
