# Finds torch: TORCH_LIBRARIES, TORCH_INCLUDE_DIRS, TORCH_INSTALL_PREFIX, TORCH_CXX_FLAGS. The build and an
# installed Ductile (ductile-config.cmake) read it.
#
# The TorchConfig.cmake of a torch that computes on GPUs (pip's) asks for a CUDA toolkit with nvcc.
# Ductile computes on processors and needs none of it: of such a torch it links libtorch_cpu and libc10.
find_file(DUCTILE_TORCH_CONFIG TorchConfig.cmake
  HINTS ${Torch_DIR} ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
  PATH_SUFFIXES Torch share/cmake/Torch NO_DEFAULT_PATH)
set(_torch)
if(DUCTILE_TORCH_CONFIG)
  get_filename_component(_torch "${DUCTILE_TORCH_CONFIG}/../../../.." ABSOLUTE)
endif()
if(NOT _torch OR NOT EXISTS ${_torch}/lib/libtorch_cuda.so)
  find_package(Torch REQUIRED)
  return()
endif()

set(Torch_FOUND TRUE)
set(TORCH_INSTALL_PREFIX ${_torch})
file(STRINGS ${DUCTILE_TORCH_CONFIG} _abi REGEX "_GLIBCXX_USE_CXX11_ABI=0")
set(TORCH_CXX_FLAGS "")
if(_abi)
  set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")
endif()

# Beside its own headers lie those of other libraries in versions of its own. Links to all but these,
# so that ours are found: of fmt and pybind11.
set(_headers ${CMAKE_BINARY_DIR}/torch_headers)
set(DUCTILE_TORCH_PYBIND11 ${CMAKE_BINARY_DIR}/torch_pybind11)  # what its Python half is built with
file(GLOB _entries ${_torch}/include/*)
foreach(_entry IN LISTS _entries)
  get_filename_component(_name ${_entry} NAME)
  set(_to ${_headers})
  if(_name STREQUAL "pybind11")
    set(_to ${DUCTILE_TORCH_PYBIND11})
  elseif(_name STREQUAL "fmt")
    continue()
  endif()
  file(MAKE_DIRECTORY ${_to})
  file(CREATE_LINK ${_entry} ${_to}/${_name} SYMBOLIC)
endforeach()

# Its libraries find those of CUDA by themselves when they run.
set(TORCH_INCLUDE_DIRS "")
set(TORCH_LIBRARIES ductile::torch)
if(NOT TARGET ductile::torch)
  add_library(ductile::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(ductile::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_headers};${_headers}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${_torch}/lib/libtorch_cpu.so;${_torch}/lib/libc10.so"
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
endif()
message(STATUS "Torch: ${_torch}, without its CUDA")
