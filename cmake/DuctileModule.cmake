# One module = one folder under src/ductile, one library ductile::<name>, one test program.
#
#   ductile_module(ckpt DEPS base LIBS PkgConfig::xxhash
#     HEADERS manifest.h SOURCES manifest.cc TESTS manifest_test.cc)
#
# DEPS    modules below this one; a dependency, or an #include, on any other module is refused.
# LIBS    outside libraries, public. PRIVATE_LIBS: not passed on to users.
# HEADERS public headers: installed, and each compiled alone by the target
#         all_verify_interface_header_sets. SOURCES may hold private headers (_impl.h).
# TESTS   GoogleTest sources, linked into ductile_<name>_test; TEST_LIBS for them alone. What several
#         tests share lies in a folder testing/, which nothing but tests may include.
# TEST_DEPS  modules below this one that its tests alone use.
# ASSETS  .css and .js files, embedded as constants of the module's namespace: charts.js of module
#         page is ductile::page::kChartsJs, declared by a header of the module.
# GLUE    the module's own loops are a small part of the time that it takes: it is optimised less (-O1),
#         which takes a quarter off the time to compile it.
# TORCH   the module is above the torch line; only such a module may include torch headers.

# The layer of every module of the design; a module may use strictly lower ones.
set(DUCTILE_LAYER_base 0)
set(DUCTILE_LAYER_noise 1)
set(DUCTILE_LAYER_spec 1)
set(DUCTILE_LAYER_page 1)
set(DUCTILE_LAYER_process 1)
foreach(m net graph data ckpt minima tune run dashboard)
  set(DUCTILE_LAYER_${m} 2)
endforeach()
foreach(m comm plan sched trials serving)
  set(DUCTILE_LAYER_${m} 3)
endforeach()
foreach(m control emulate)
  set(DUCTILE_LAYER_${m} 4)
endforeach()
foreach(m link sim)
  set(DUCTILE_LAYER_${m} 5)
endforeach()
foreach(m nn optim)
  set(DUCTILE_LAYER_${m} 6)
endforeach()
set(DUCTILE_LAYER_parallel 7)
set(DUCTILE_LAYER_train 8)
foreach(m agent server)
  set(DUCTILE_LAYER_${m} 9)
endforeach()
foreach(m bench cluster)
  set(DUCTILE_LAYER_${m} 10)
endforeach()
set(DUCTILE_LAYER_cli 11)
set(DUCTILE_LAYER_fleet 12)
set(DUCTILE_LAYER_python 11)

set(DUCTILE_SOURCE_ROOT ${CMAKE_CURRENT_LIST_DIR}/../src)
set(DUCTILE_CMAKE_DIR ${CMAKE_CURRENT_LIST_DIR})
include(${CMAKE_CURRENT_LIST_DIR}/DuctilePch.cmake)

# The sources of a library are compiled eight at a time as one, those of a test program four at a time,
# which takes less than half the time of compiling them one by one. Two that use one name in their unnamed namespaces then do not compile: one of them
# gets a better name. Each source compiles alone, too (.ci/run headers; -DDUCTILE_UNITY=OFF).
option(DUCTILE_UNITY "Compile several sources of a library or a test program at a time" ON)

function(ductile_compile_together target sources)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${DUCTILE_UNITY} UNITY_BUILD_BATCH_SIZE ${sources})
  if(DUCTILE_UNITY)  # GCC takes the types of such a source for those of a header
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

function(ductile_module name)
  cmake_parse_arguments(M "TORCH;GLUE" ""
    "DEPS;LIBS;PRIVATE_LIBS;HEADERS;SOURCES;ASSETS;TESTS;TEST_DEPS;TEST_LIBS;TEST_ARGS" ${ARGN})
  if(M_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "ductile_module(${name}): unknown arguments ${M_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT DEFINED DUCTILE_LAYER_${name})
    message(FATAL_ERROR "ductile_module(${name}): not in the layer table of DuctileModule.cmake")
  endif()
  foreach(dep IN LISTS M_DEPS M_TEST_DEPS)
    if(NOT DEFINED DUCTILE_LAYER_${dep} OR NOT DUCTILE_LAYER_${dep} LESS DUCTILE_LAYER_${name})
      message(FATAL_ERROR "ductile_module(${name}): ${dep} is not on a lower layer "
        "(${name} is on ${DUCTILE_LAYER_${name}}, ${dep} on ${DUCTILE_LAYER_${dep}})")
    endif()
  endforeach()

  set(target ductile_${name})
  add_library(${target} STATIC)
  add_library(ductile::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} VERIFY_INTERFACE_HEADER_SETS ON)
  target_sources(${target} PRIVATE ${M_SOURCES}
    PUBLIC FILE_SET HEADERS BASE_DIRS ${DUCTILE_SOURCE_ROOT} FILES ${M_HEADERS})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  ductile_compile_together(${target} 8)
  target_compile_features(${target} PUBLIC cxx_std_20)
  foreach(dep IN LISTS M_DEPS)
    target_link_libraries(${target} PUBLIC ductile_${dep})
  endforeach()
  target_link_libraries(${target} PUBLIC ${M_LIBS} PRIVATE ${M_PRIVATE_LIBS}
    $<BUILD_INTERFACE:ductile_options>)
  if(M_TORCH)
    target_include_directories(${target} SYSTEM PUBLIC ${TORCH_INCLUDE_DIRS})
    target_link_libraries(${target} PUBLIC ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch)
    ductile_use_pch(${target} torch)
  elseif(NOT OpenMP::OpenMP_CXX IN_LIST M_LIBS)  # -fopenmp changes what <algorithm> says
    ductile_use_pch(${target} library)
  endif()

  if(M_GLUE)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()

  if(M_ASSETS)
    set(embedded ${CMAKE_CURRENT_BINARY_DIR}/${name}_assets.cc)
    add_custom_command(OUTPUT ${embedded}
      COMMAND ${CMAKE_COMMAND} -DMODULE=${name} "-DFILES=${M_ASSETS}"
        -DDIR=${CMAKE_CURRENT_SOURCE_DIR} -DOUT=${embedded} -P ${DUCTILE_CMAKE_DIR}/embed.cmake
      DEPENDS ${M_ASSETS} ${DUCTILE_CMAKE_DIR}/embed.cmake VERBATIM)
    target_sources(${target} PRIVATE ${embedded})
  endif()

  # Includes are checked before the module compiles, whenever one of its files changed.
  set(files ${M_HEADERS} ${M_SOURCES})
  set(tests ${M_TESTS})
  list(FILTER files INCLUDE REGEX "\\.(h|cc)$")
  list(FILTER tests INCLUDE REGEX "\\.(h|cc)$")
  set(check ${CMAKE_COMMAND} -DMODULE=${name} -DTORCH=${M_TORCH} -DDIR=${CMAKE_CURRENT_SOURCE_DIR})
  set(stamp ${CMAKE_CURRENT_BINARY_DIR}/${name}_layers.stamp)
  add_custom_command(OUTPUT ${stamp}
    COMMAND ${check} "-DDEPS=${M_DEPS}" "-DFILES=${files}"
      -P ${DUCTILE_CMAKE_DIR}/check_includes.cmake
    COMMAND ${check} "-DDEPS=${M_DEPS};${M_TEST_DEPS}" "-DFILES=${tests}" -DRIGS=TRUE
      -P ${DUCTILE_CMAKE_DIR}/check_includes.cmake
    COMMAND ${CMAKE_COMMAND} -E touch ${stamp}
    DEPENDS ${files} ${tests} ${DUCTILE_CMAKE_DIR}/check_includes.cmake VERBATIM)
  add_custom_target(${name}_layers DEPENDS ${stamp})
  add_dependencies(${target} ${name}_layers)

  install(TARGETS ${target} EXPORT ductile FILE_SET HEADERS
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})

  if(DUCTILE_TESTS AND M_TESTS)
    set(torch)
    if(M_TORCH)
      set(torch TORCH)
    endif()
    list(TRANSFORM M_TEST_DEPS PREPEND ductile_)
    ductile_test(${name}_test ${torch} SOURCES ${M_TESTS} LIBS ${target} ${M_TEST_DEPS} ${M_TEST_LIBS})
  endif()
endfunction()

# Tests that take longer than 40 seconds, and seconds as ctest measured them: the longest start first, since
# one that is left for the end has a core to itself. (ctest knows better where it has run them before.)
set(DUCTILE_TEST_SECONDS
  python_chosen_test 340 python_import_test 310 python_hosts_test 300 train_test 240
  cluster_serving_nodes_test 220 cluster_command_test 165 train_stages_test 160 cluster_service_test 155 python_stubs_test 60 sim_test 130
  slurm_test 135 cluster_test 135 python_job_test 130 elastic_test 125 server_job_test 115 plan_test 115 nn_test 105 chaos_test 100 hosts_test 95
  injection_test 90 python_zygote_test 90 tune_command_test 85 python_capture_test 85 full_disk_test 85
  service_start_test 85 cli_transcript_goodput 80 python_cells_test 65 cluster_outage_test 60
  cli_transcript_elastic 55 python_program_test 55 parallel_test 50 dashboard_page_test 50 kill_resume_test 45
  threads_test 45 sharded_test 42)

# Tests that wait for processes and timers most of the time: half as many processors are kept for them.
set(DUCTILE_WAITING_TESTS cluster_command_test cluster_nodes_chaos_test cluster_outage_test cluster_service_test
  cluster_serving_nodes_test cluster_serving_test comm_detector_test link_test python_hosts_test python_kills_test python_zygote_test
  server_chaos_test server_job_test slurm_test cli_transcript_access cli_transcript_exit_codes cli_transcript_follow
  cli_transcript_service cli_transcript_service_order)

# When ctest starts the test, and beside how many others: its PROCESSORS are halves of a core, so `ctest --parallel`
# is to get twice as many as there are cores.
function(ductile_order_test name)
  set(halves 2)
  if(name IN_LIST DUCTILE_WAITING_TESTS)
    set(halves 1)
  endif()
  set_tests_properties(${name} PROPERTIES PROCESSORS ${halves})
  list(FIND DUCTILE_TEST_SECONDS ${name} at)
  if(at GREATER_EQUAL 0)
    math(EXPR at "${at} + 1")
    list(GET DUCTILE_TEST_SECONDS ${at} seconds)
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endfunction()

# Programs that watch others, and compute little themselves: compiled without optimisation, which takes
# half the time.
set(DUCTILE_PLAIN_TESTS base_test chaos_test cluster_command_test cluster_hostile_test cluster_nodes_chaos_test
  cluster_outage_test cluster_service_test cluster_serving_nodes_test cluster_serving_test comm_composite_test custom_model_test elastic_test fleet_test
  full_disk_test graph_test hosts_test injection_test kill_resume_test link_test minima_test net_test page_test pipeline_memory_test
  pipeline_transports_test run_test server_chaos_test server_job_test server_test server_zygotes_test
  sharded_test spec_test threads_test train_serve_test tune_command_test)

# ductile_test(NAME [TORCH] SOURCES ... LIBS ...): a GoogleTest program ductile_NAME, one ctest
# entry. TORCH: a library that it links is above the torch line.
function(ductile_test name)
  cmake_parse_arguments(T "TORCH" "" "SOURCES;LIBS" ${ARGN})
  add_executable(ductile_${name} ${T_SOURCES})
  ductile_compile_together(ductile_${name} 4)
  target_link_libraries(ductile_${name} PRIVATE ${T_LIBS} GTest::gtest_main rapidcheck
    ductile_options)
  # What is tested is optimised in full; the tests themselves a third faster to compile.
  set(plain)
  if(name IN_LIST DUCTILE_PLAIN_TESTS)
    set(plain plain_)
    target_compile_options(ductile_${name} PRIVATE $<$<CONFIG:Release>:-O0>)
  else()
    target_compile_options(ductile_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(DUCTILE_SANITIZE)
    target_link_libraries(ductile_${name} PRIVATE ductile_test_options)
  endif()
  target_compile_definitions(ductile_${name} PRIVATE
    DUCTILE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" DUCTILE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(T_TORCH)
    ductile_use_pch(ductile_${name} ${plain}torch_test)
    set_target_properties(ductile_${name} PROPERTIES JOB_POOL_COMPILE torch)
  elseif(NOT ductile_optim IN_LIST T_LIBS)
    ductile_use_pch(ductile_${name} ${plain}test)
  endif()
  add_test(NAME ${name} COMMAND ductile_${name})
  set(timeout 1200)  # several times what the longest takes on a slow machine
  if(DUCTILE_SANITIZE)
    set(timeout 3000)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout}
    # UCX hooks madvise, which a thread calls when the thread sanitizer has already taken leave of it.
    ENVIRONMENT
    "OMP_WAIT_POLICY=PASSIVE;ASAN_OPTIONS=detect_leaks=0;UCX_MEM_MMAP_HOOK_MODE=none")
  ductile_order_test(${name})
endfunction()

# ductile_isa_tests(NAME FILTER): these tests of the program ductile_NAME once more for every
# instruction set that kernels are written for, forced: ours, libtorch's and oneDNN's; of properties a quarter
# of the cases. A machine that lacks one runs its best; of libtorch this has to be told, which does what it is told without looking.
function(ductile_isa_tests name filter)
  if(NOT TARGET ductile_${name})
    return()
  endif()
  set(torch_best avx2)
  file(STRINGS /proc/cpuinfo processor LIMIT_COUNT 1 REGEX "^flags.* avx512f ")
  if(processor)
    set(torch_best avx512)
  endif()
  set(levels "baseline default SSE41" "avx2 avx2 AVX2" "avx512 ${torch_best} AVX512_CORE")
  file(STRINGS /proc/cpuinfo processor LIMIT_COUNT 1 REGEX "^flags.* amx_bf16")
  if(processor)
    list(APPEND levels "bf16 ${torch_best} AVX512_CORE_BF16")
  endif()
  get_test_property(${name} ENVIRONMENT environment)
  foreach(isa ${levels})
    separate_arguments(isa)
    list(GET isa 0 ours)
    list(GET isa 1 torch)
    list(GET isa 2 onednn)
    add_test(NAME ${name}_${ours} COMMAND ductile_${name} "--gtest_filter=${filter}")
    set_tests_properties(${name}_${ours} PROPERTIES TIMEOUT 1200 ENVIRONMENT
      "${environment};DUCTILE_ISA=${ours};ATEN_CPU_CAPABILITY=${torch};ONEDNN_MAX_CPU_ISA=${onednn};RC_PARAMS=max_success=25")
    ductile_order_test(${name}_${ours})
  endforeach()
endfunction()

# ductile_long_test(NAME VARIABLE=VALUE ...): the test NAME once more as NAME_long, in full, which these
# variables ask for; under the label `long`, which scripts/test leaves out.
function(ductile_long_test name)
  get_test_property(${name} ENVIRONMENT environment)
  add_test(NAME ${name}_long COMMAND ductile_${name})
  set_tests_properties(${name}_long PROPERTIES LABELS long TIMEOUT 7200
    ENVIRONMENT "${environment};${ARGN}")
endfunction()

# ductile_extension(MODULE NAME [TORCH] SOURCES ... DEPS ...): the Python extension NAME of the module
# MODULE, which links these modules; what it includes is checked as a module's is.
function(ductile_extension module name)
  cmake_parse_arguments(E "TORCH" "" "SOURCES;DEPS" ${ARGN})
  pybind11_add_module(${name} MODULE NO_EXTRAS ${E_SOURCES})
  ductile_compile_together(${name} 8)
  foreach(dep IN LISTS E_DEPS)
    if(NOT DEFINED DUCTILE_LAYER_${dep} OR NOT DUCTILE_LAYER_${dep} LESS DUCTILE_LAYER_${module})
      message(FATAL_ERROR "ductile_extension(${name}): ${dep} is not on a lower layer than ${module}")
    endif()
    target_link_libraries(${name} PRIVATE ductile_${dep})
  endforeach()
  target_link_libraries(${name} PRIVATE ductile_options)
  target_include_directories(${name} PRIVATE ${DUCTILE_SOURCE_ROOT})
  if(E_TORCH)
    set_target_properties(${name} PROPERTIES JOB_POOL_COMPILE torch)
  endif()
  set(stamp ${CMAKE_CURRENT_BINARY_DIR}/${name}_layers.stamp)
  add_custom_command(OUTPUT ${stamp}
    COMMAND ${CMAKE_COMMAND} -DMODULE=${module} -DTORCH=${E_TORCH} -DDIR=${CMAKE_CURRENT_SOURCE_DIR}
      "-DDEPS=${E_DEPS}" "-DFILES=${E_SOURCES}" -P ${DUCTILE_CMAKE_DIR}/check_includes.cmake
    COMMAND ${CMAKE_COMMAND} -E touch ${stamp}
    DEPENDS ${E_SOURCES} ${DUCTILE_CMAKE_DIR}/check_includes.cmake VERBATIM)
  add_custom_target(${name}_layers DEPENDS ${stamp})
  add_dependencies(${name} ${name}_layers)
endfunction()

# ductile_program(NAME SOURCES ... LIBS ...): an installed executable in <build>/bin.
function(ductile_program name)
  cmake_parse_arguments(P "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${P_SOURCES})
  target_link_libraries(${name} PRIVATE ${P_LIBS} ductile_options)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  install(TARGETS ${name} DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endfunction()

function(ductile_install)
  install(EXPORT ductile NAMESPACE ductile:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ductile
    FILE ductile-targets.cmake)
  include(CMakePackageConfigHelpers)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/ductile-config-version.cmake
    COMPATIBILITY SameMinorVersion)
  configure_package_config_file(${DUCTILE_CMAKE_DIR}/ductile-config.cmake.in
    ${PROJECT_BINARY_DIR}/ductile-config.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ductile)
  install(FILES ${PROJECT_BINARY_DIR}/ductile-config.cmake
    ${PROJECT_BINARY_DIR}/ductile-config-version.cmake ${DUCTILE_CMAKE_DIR}/DuctileTorch.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ductile)
endfunction()
