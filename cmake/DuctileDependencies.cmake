# Everything outside the repository that the build uses; Debian names in scripts/setup.
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS SSL Crypto)
pkg_check_modules(jpeg REQUIRED IMPORTED_TARGET libjpeg)
pkg_check_modules(spng REQUIRED IMPORTED_TARGET spng)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus)
pkg_check_modules(qhull REQUIRED IMPORTED_TARGET qhull_r)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc>=2.5)
if(DUCTILE_UCX)
  pkg_check_modules(ucx IMPORTED_TARGET ucx)
endif()

# ccache keeps results of sources with a precompiled header only when it is told that it may.
set(DUCTILE_OWN_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
find_program(DUCTILE_CCACHE ccache)
if(DUCTILE_CCACHE AND NOT DUCTILE_OWN_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${DUCTILE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${DUCTILE_CCACHE})
endif()
find_program(DUCTILE_MOLD mold)
if(DUCTILE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# A torch source takes 1-1.5 GB to compile: at most one job for each 2 GB, in a pool of its own.
cmake_host_system_information(RESULT _memory_mb QUERY AVAILABLE_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT _cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR _torch_jobs "${_memory_mb} / 2048")
if(_torch_jobs GREATER _cores)
  set(_torch_jobs ${_cores})
endif()
if(_torch_jobs LESS 1)
  set(_torch_jobs 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch=${_torch_jobs})

if(DUCTILE_TORCH)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  include(DuctileTorch)
  include(TorchAbi)
  # Torch's own flags go on the modules that use it only (TORCH_LIBRARIES), never globally.
endif()
# NCCL needs nccl.h and CUDA's runtime (Debian: nvidia-cuda-toolkit, libnccl-dev; else NCCL_HOME and
# CUDA_HOME). A torch of pip for GPUs has both beside itself; headers that do not compile count as none.
set(DUCTILE_NCCL_FOUND OFF)
if(NOT DUCTILE_NCCL STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  set(_nvidia)
  if(DUCTILE_TORCH)
    get_filename_component(_packages ${TORCH_INSTALL_PREFIX} DIRECTORY)
    file(GLOB _nvidia ${_packages}/nvidia/nccl ${_packages}/nvidia/cu[0-9]* ${_packages}/nvidia/cuda_runtime)
  endif()
  find_path(DUCTILE_NCCL_INCLUDE nccl.h
    HINTS $ENV{NCCL_HOME} ${_nvidia} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library(DUCTILE_NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
    HINTS $ENV{NCCL_HOME} ${_nvidia} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
  find_path(DUCTILE_CUDART_INCLUDE cuda_runtime_api.h
    HINTS $ENV{CUDA_HOME} ${_nvidia} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library(DUCTILE_CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR
    HINTS $ENV{CUDA_HOME} ${_nvidia} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
  if(DUCTILE_NCCL_INCLUDE AND DUCTILE_NCCL_LIBRARY AND DUCTILE_CUDART_INCLUDE AND DUCTILE_CUDART_LIBRARY)
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_INCLUDES ${DUCTILE_NCCL_INCLUDE} ${DUCTILE_CUDART_INCLUDE})
    set(CMAKE_REQUIRED_LIBRARIES ${DUCTILE_NCCL_LIBRARY} ${DUCTILE_CUDART_LIBRARY})
    check_cxx_source_compiles("#include <cuda_runtime_api.h>
      #include <nccl.h>
      int main() { int v = 0; return ncclGetVersion(&v) + cudaSetDevice(0); }" DUCTILE_NCCL_COMPILES)
    unset(CMAKE_REQUIRED_INCLUDES)
    unset(CMAKE_REQUIRED_LIBRARIES)
    set(DUCTILE_NCCL_FOUND ${DUCTILE_NCCL_COMPILES})
  endif()
  if(DUCTILE_NCCL STREQUAL "ON" AND NOT DUCTILE_NCCL_FOUND)
    message(FATAL_ERROR "DUCTILE_NCCL=ON needs nccl.h, libnccl, cuda_runtime_api.h and libcudart: install them, "
      "set NCCL_HOME and CUDA_HOME to where they lie, or use DUCTILE_NCCL=AUTO")
  endif()
endif()

if(DUCTILE_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  find_package(rapidcheck REQUIRED)
endif()
if(DUCTILE_BENCH)
  find_package(benchmark QUIET)
endif()

add_library(ductile_options INTERFACE)
# -ffp-contract=off: one rounding after every operation, so that bits are the same on every machine;
# a fused multiply-add is written out. -fpch-preprocess: ccache needs it.
target_compile_options(ductile_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers
                       -ffp-contract=off $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                       $<$<BOOL:${DUCTILE_WERROR}>:-Werror>)
if(DUCTILE_SANITIZE)
  # The check of vptr opens a pipe to look at memory, and finds a fault where a test has left no
  # descriptors.
  target_compile_options(ductile_options INTERFACE -fsanitize=${DUCTILE_SANITIZE} -fno-sanitize=vptr
                         -fno-omit-frame-pointer)
  target_link_options(ductile_options INTERFACE -fsanitize=${DUCTILE_SANITIZE})
  # Of the tests themselves; these checks would double the time in which they compile. Options of a
  # library stand behind those of a target, so they are those of one that is linked last.
  add_library(ductile_test_options INTERFACE)
  target_compile_options(ductile_test_options INTERFACE -fno-sanitize=null,alignment,object-size)
endif()
