# A module with files that are embedded: what the program holds is the file, byte for byte, and again
# after the file changed; what cannot be embedded is refused. Run with -DSOURCE=<repository>
# -DBINARY=<scratch folder>.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${BINARY})
file(WRITE ${BINARY}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
include(GNUInstallDirs)
include(${SOURCE}/cmake/DuctileModule.cmake)
add_library(ductile_options INTERFACE)
ductile_module(page SOURCES probe.cc ASSETS two-words.js look.css)
add_executable(show show.cc)
target_link_libraries(show ductile_page)
")
file(WRITE ${BINARY}/probe.cc "int probe;\n")
file(WRITE ${BINARY}/show.cc "#include <iostream>
#include <string_view>
namespace ductile::page { extern const std::string_view kTwoWordsJs, kLookCss; }
int main() { std::cout << ductile::page::kTwoWordsJs << ductile::page::kLookCss; }
")
# All that CMake, C++ and raw strings could take for their own.
set(hostile [==[a;b;;c [x] \n \\ "q" ')" ${SOURCE} @SOURCE@ $<x> // ??/ é
]==])
file(WRITE ${BINARY}/look.css "")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE err)
  set(result ${result} PARENT_SCOPE)
  set(out "${out}" PARENT_SCOPE)
  set(err "${out}${err}" PARENT_SCOPE)
endfunction()

function(expect text)
  file(WRITE ${BINARY}/two-words.js "${text}")
  run(${CMAKE_COMMAND} --build ${BINARY}/build --target show)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "does not build: ${err}")
  endif()
  run(${BINARY}/build/show)
  if(NOT out STREQUAL text)
    message(FATAL_ERROR "embedded as '${out}', is '${text}'")
  endif()
endfunction()

file(WRITE ${BINARY}/two-words.js "")
run(${CMAKE_COMMAND} -S ${BINARY} -B ${BINARY}/build -G Ninja)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "does not configure: ${err}")
endif()
expect("${hostile}")
expect("changed")

file(WRITE ${BINARY}/two-words.js "x )asset\" y")
run(${CMAKE_COMMAND} --build ${BINARY}/build --target show)
if(result EQUAL 0 OR NOT err MATCHES "two-words.js: the characters")
  message(FATAL_ERROR "should be refused: ${err}")
endif()
