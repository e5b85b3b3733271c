# Precompiled headers: what most sources read anyway, compiled once for each kind of target.
#
#   library      the modules below the torch line
#   torch        the modules above it
#   test         test programs; torch_test: those of the modules above the line
#   plain_...    the same for those that are compiled without optimisation
#
# They save time and nothing else: each source includes what it uses, and compiles without them
# (.ci/run headers; -DDUCTILE_PCH=OFF).

# No other compiler or launcher has been tried; with sanitizers every source is compiled without.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT DUCTILE_SANITIZE AND NOT DUCTILE_OWN_LAUNCHER)
  set(_pch_default ON)
else()
  set(_pch_default OFF)
endif()
option(DUCTILE_PCH "Precompile the headers that most sources include" ${_pch_default})

# Angle brackets: a copy of the repository elsewhere gets the same text, and ccache the same result.
set(DUCTILE_PCH_library <algorithm> <array> <cerrno> <charconv> <chrono> <cmath> <condition_variable>
  <cstdint> <cstdlib> <cstring> <deque> <filesystem> <functional> <limits> <map> <memory> <mutex>
  <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread> <tuple>
  <unordered_map> <utility> <variant> <vector> <fmt/format.h> <nlohmann/json_fwd.hpp>)
set(DUCTILE_PCH_torch ${DUCTILE_PCH_library} <ATen/core/Tensor.h>)
set(DUCTILE_PCH_test ${DUCTILE_PCH_library} <gtest/gtest.h>)
set(DUCTILE_PCH_torch_test ${DUCTILE_PCH_test} <ATen/core/Tensor.h>)
set(DUCTILE_PCH_plain_test ${DUCTILE_PCH_test})
set(DUCTILE_PCH_plain_torch_test ${DUCTILE_PCH_torch_test})

# A target of its own compiles each kind, with the flags of the targets that use it.
function(ductile_pch_owner kind)
  set(owner ductile_pch_${kind})
  if(kind MATCHES "test")  # programs are compiled with -fPIE, libraries with -fPIC
    add_executable(${owner} EXCLUDE_FROM_ALL ${DUCTILE_CMAKE_DIR}/pch_owner.cc)
    target_link_libraries(${owner} PRIVATE GTest::gtest)
  else()
    add_library(${owner} OBJECT EXCLUDE_FROM_ALL ${DUCTILE_CMAKE_DIR}/pch_owner.cc)
  endif()
  target_link_libraries(${owner} PRIVATE fmt::fmt nlohmann_json::nlohmann_json Threads::Threads
    ductile_options)
  if(kind MATCHES "torch")
    target_include_directories(${owner} SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
    target_link_libraries(${owner} PRIVATE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)
    set_target_properties(${owner} PROPERTIES JOB_POOL_COMPILE torch)
  endif()
  if(kind MATCHES "plain")  # what is read depends on it (__OPTIMIZE__)
    target_compile_options(${owner} PRIVATE $<$<CONFIG:Release>:-O0>)
  endif()
  target_compile_features(${owner} PRIVATE cxx_std_20)
  target_precompile_headers(${owner} PRIVATE ${DUCTILE_PCH_${kind}})
endfunction()

# ductile_use_pch(TARGET KIND): a flag that matters to the headers and that the kind's owner lacks is
# an error under DUCTILE_WERROR (-Winvalid-pch); such a source gets SKIP_PRECOMPILE_HEADERS.
function(ductile_use_pch target kind)
  if(NOT DUCTILE_PCH)
    return()
  endif()
  if(NOT TARGET ductile_pch_${kind})
    ductile_pch_owner(${kind})
  endif()
  target_precompile_headers(${target} REUSE_FROM ductile_pch_${kind})
  # GCC 13 says that its setting differs between -O3 and -O1, and passes the header over. (Tried with
  # GCC 12 alone since, which does not get the flag.)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13 AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64"
     AND NOT kind MATCHES "plain")
    target_compile_options(${target} PRIVATE -munroll-only-small-loops)
  endif()
  # GCC 12 warns of its own std::string (bug 105651); -Wno-restrict says no to that, but what it has
  # read from a precompiled header it takes for ours, and warns of the same by other names.
  target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow
    -Wno-stringop-overread)
endfunction()
