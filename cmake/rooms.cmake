# SPDX-License-Identifier: Apache-2.0
# reshard_room(<name> ROOMS <rooms it uses> LIBS <external libraries> FOLDERS <folders of the room> MODULES <folders>)
#
# The library `reshard_<name>` from reshard/<name>/*.cc and from its FOLDERS. With RESHARD_DEV also the programs
# `reshard_<name>_tests` from *_test.cc (registered with ctest) and `reshard_<name>_bench` from *_bench.cc, and the
# library `reshard_<name>_testutil` from *_testutil.cc, which the tests of any room may link. The global property
# RESHARD_ROOMS lists the libraries that have objects. MODULES are folders of the room, too; the module.cc of each is not
# in the library, but becomes a loadable module that links it (cmake/transports.cmake).
function(reshard_room name)
  cmake_parse_arguments(ROOM "" "" "ROOMS;LIBS;FOLDERS;MODULES" ${ARGN})
  set(dirs ${PROJECT_SOURCE_DIR}/reshard/${name})
  foreach(folder ${ROOM_FOLDERS} ${ROOM_MODULES})
    list(APPEND dirs ${PROJECT_SOURCE_DIR}/reshard/${name}/${folder})
  endforeach()
  foreach(kind "" _test _bench _testutil)
    set(patterns ${dirs})
    list(TRANSFORM patterns APPEND "/*${kind}.cc")
    file(GLOB found${kind} CONFIGURE_DEPENDS ${patterns})
  endforeach()
  set(sources ${found})
  set(tests ${found_test})
  set(benches ${found_bench})
  set(utils ${found_testutil})
  set(entries ${ROOM_MODULES})
  list(TRANSFORM entries REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/reshard/${name}/\\1/module.cc")
  list(REMOVE_ITEM sources ${tests} ${benches} ${utils} ${entries} "")
  list(TRANSFORM ROOM_ROOMS PREPEND reshard_)

  set(target reshard_${name})
  if(sources)
    add_library(${target} STATIC ${sources})
    reshard_unity(${target} ${sources})
    target_link_libraries(${target} PUBLIC ${ROOM_ROOMS} ${ROOM_LIBS} PRIVATE reshard_flags)
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
    set_property(GLOBAL APPEND PROPERTY RESHARD_ROOMS ${target})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${ROOM_ROOMS} ${ROOM_LIBS})
    target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR})
  endif()
  add_library(reshard::${name} ALIAS ${target})

  if(NOT RESHARD_DEV)
    return()
  endif()
  if(utils)
    add_library(${target}_testutil STATIC ${utils})
    target_link_libraries(${target}_testutil PUBLIC ${target} rapidcheck PRIVATE reshard_flags)
  endif()
  if(tests)
    reshard_test(${target}_tests FILES ${tests} LIBS ${target} LABELS unit)
  endif()
  if(benches)
    add_executable(${target}_bench EXCLUDE_FROM_ALL ${benches})
    target_link_libraries(${target}_bench PRIVATE ${target} reshard_flags benchmark::benchmark_main)
    foreach(room ${target} ${ROOM_ROOMS} reshard_model)
      if(TARGET ${room}_testutil)
        target_link_libraries(${target}_bench PRIVATE ${room}_testutil)
      endif()
    endforeach()
  endif()
endfunction()

# reshard_unity(<target> <source>...): compiles twelve sources at a time, which parses their headers once; with
# RESHARD_UNITY=OFF one at a time. Kernels are always compiled alone: each sets its own instruction set.
function(reshard_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${RESHARD_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  if(RESHARD_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # g++ takes an anonymous namespace for one in a header, because a unity source includes the file.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  set(kernels ${ARGN})
  list(FILTER kernels INCLUDE REGEX "/kernels/")
  set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# reshard_compile_as_test(<target>): less optimisation than the product, because compiling tests takes longer than running
# them. Not for *_testutil.cc, whose references and emulated kernels run longer. The last -O counts.
function(reshard_compile_as_test target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# The precompiled headers of GoogleTest and rapidcheck, for all test programs.
function(reshard_test_headers)
  if(TARGET reshard_test_headers)
    return()
  endif()
  set(source ${PROJECT_BINARY_DIR}/generated/test_headers.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(reshard_test_headers OBJECT ${source})
  target_link_libraries(reshard_test_headers PRIVATE reshard_flags rapidcheck GTest::gmock)
  # Executables are compiled with -fPIE, and a precompiled header needs the same flags as its users.
  set_target_properties(reshard_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(reshard_test_headers PRIVATE -fPIE)
  reshard_compile_as_test(reshard_test_headers)
  target_precompile_headers(reshard_test_headers PRIVATE <algorithm> <functional> <map> <memory> <optional> <string>
    <thread> <vector> <gmock/gmock.h> <gtest/gtest.h> <rapidcheck.h> <rapidcheck/gtest.h>)
endfunction()

# reshard_register_tests(<target> <label>...): registers each test of a GoogleTest program with ctest. A program with
# sanitizers takes a second to start: its tests are registered in four shards, whose reports tools/run_tests.sh collects.
function(reshard_register_tests target)
  if(RESHARD_SANITIZE)
    if(RESHARD_SANITIZE STREQUAL thread)
      # They run programs on one thread, byte by byte.
      set(filter ";GTEST_FILTER=-*/PartialPrograms.*:*/QuantisedPrograms.*:Random*Programs.*")
    endif()
    foreach(shard RANGE 3)
      set(test ${target}.shard${shard})
      add_test(NAME ${test} COMMAND ${target} --gtest_brief=1)
      set_tests_properties(${test} PROPERTIES LABELS "${ARGN}" TIMEOUT 3000 ENVIRONMENT
        "GTEST_TOTAL_SHARDS=4;GTEST_SHARD_INDEX=${shard};GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/reports/${test}.xml${filter}")
    endforeach()
    return()
  endif()
  include(GoogleTest)
  gtest_discover_tests(${target} PROPERTIES LABELS "${ARGN}" DISCOVERY_TIMEOUT 60)
  # All combinations, where the tests above are a share of them (combinations_testutil.h); with a report of its own.
  add_test(NAME ${target}.all COMMAND ${target} --gtest_brief=1)
  set_tests_properties(${target}.all PROPERTIES LABELS "slow" TIMEOUT 7200 ENVIRONMENT
    "RESHARD_SLOW_TESTS=1;GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/reports/${target}.all.xml")
endfunction()

# reshard_test(<target> FILES ... LIBS ... LABELS ...): a GoogleTest program with rapidcheck. Registers its tests and
# links the test utilities of all rooms.
function(reshard_test target)
  cmake_parse_arguments(T "" "" "FILES;LIBS;LABELS" ${ARGN})
  add_executable(${target} ${T_FILES})
  target_link_libraries(${target} PRIVATE ${T_LIBS} reshard_flags rapidcheck GTest::gmock GTest::gtest_main)
  reshard_test_headers()
  reshard_compile_as_test(${target})
  target_precompile_headers(${target} REUSE_FROM reshard_test_headers)
  foreach(room base index layout sharding model plan memory transform cuda transport gpu_transport program exec refit fleet megatron io convert)
    if(TARGET reshard_${room}_testutil)
      target_link_libraries(${target} PRIVATE reshard_${room}_testutil)
    endif()
  endforeach()
  reshard_register_tests(${target} ${T_LABELS})
endfunction()
