# A torch like pip's for GPUs, whose TorchConfig.cmake asks for nvcc: DuctileTorch.cmake takes it all the
# same, with its own headers and without the fmt and the pybind11 among them; a torch of the old ABI is
# told by its flags.
#   cmake -DSOURCE=... -DWORK=... -P torch_test.cmake
file(REMOVE_RECURSE ${WORK})
set(torch ${WORK}/site-packages/torch)
foreach(name ATen/ATen.h c10/macros.h torch/csrc/api/include/torch/version.h fmt/format.h pybind11/pybind11.h)
  file(WRITE ${torch}/include/${name} "")
endforeach()
foreach(name torch_cpu torch_cuda c10)
  file(WRITE ${torch}/lib/lib${name}.so "")
endforeach()
file(WRITE ${torch}/share/cmake/Torch/TorchConfig.cmake
  "set(TORCH_CXX_FLAGS \"-D_GLIBCXX_USE_CXX11_ABI=@abi@\")\nmessage(FATAL_ERROR \"no nvcc\")\n")
file(WRITE ${WORK}/CMakeLists.txt [[
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES NONE)
include(${SOURCE}/cmake/DuctileTorch.cmake)
get_target_property(headers ${TORCH_LIBRARIES} INTERFACE_INCLUDE_DIRECTORIES)
message(STATUS "headers ${headers}")
foreach(name ATen/ATen.h c10/macros.h torch/version.h fmt/format.h pybind11/pybind11.h)
  set(at nowhere)
  foreach(folder IN LISTS headers)
    if(EXISTS ${folder}/${name})
      set(at there)
    endif()
  endforeach()
  message(STATUS "${name} ${at}")
endforeach()
if(EXISTS ${DUCTILE_TORCH_PYBIND11}/pybind11/pybind11.h)
  message(STATUS "its pybind11 ${TORCH_INSTALL_PREFIX}")
endif()
include(${SOURCE}/cmake/TorchAbi.cmake)
message(STATUS "libraries ${TORCH_LIBRARIES}")
]])

function(configure prefix abi status_wanted)
  file(READ ${torch}/share/cmake/Torch/TorchConfig.cmake config)
  string(REGEX REPLACE "ABI=[@a-z0-9]+" "ABI=${abi}" config "${config}")
  file(WRITE ${torch}/share/cmake/Torch/TorchConfig.cmake "${config}")
  file(REMOVE_RECURSE ${WORK}/build)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK} -B ${WORK}/build -DSOURCE=${SOURCE}
      -DCMAKE_PREFIX_PATH=${prefix}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL status_wanted)
    message(FATAL_ERROR "exit code ${status}, not ${status_wanted}:\n${output}")
  endif()
  foreach(line IN LISTS ARGN)
    string(FIND "${output}" "${line}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "no '${line}' in:\n${output}")
    endif()
  endforeach()
endfunction()

set(taken "ATen/ATen.h there" "c10/macros.h there" "torch/version.h there" "fmt/format.h nowhere"
  "pybind11/pybind11.h nowhere" "its pybind11 ${torch}" "libraries ductile::torch")
configure(${torch}/share/cmake 1 0 ${taken})  # as torch.utils.cmake_prefix_path says
configure(${torch} 1 0 ${taken})
configure(${torch} 0 1 "built with the old C++ ABI")
file(REMOVE_RECURSE ${WORK})
