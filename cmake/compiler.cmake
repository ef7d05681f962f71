# SPDX-License-Identifier: Apache-2.0
# Flags that every target of the project shares.
add_library(reshard_flags INTERFACE)
target_include_directories(reshard_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(reshard_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor
  -Woverloaded-virtual)
# Fingerprints and scales are the same bytes on every processor: no product and sum becomes one rounding. Compilers make
# such of all code for arm64, but for x86-64 only where a function has the instructions, as in the room transform.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(RESHARD_KERNEL_FLAGS -ffp-contract=off)
else()
  target_compile_options(reshard_flags INTERFACE -ffp-contract=off)
endif()
if(RESHARD_WARNINGS_ARE_ERRORS)
  target_compile_options(reshard_flags INTERFACE -Werror)
endif()
if(RESHARD_SANITIZE)
  # Enough for readable stacks, and compiled in half the time of -O2 -g.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")
  target_compile_options(reshard_flags INTERFACE
    -fsanitize=${RESHARD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # With sanitizers, g++ 12 inlines less of std::string and warns about overlaps inside it.
    target_compile_options(reshard_flags INTERFACE -Wno-restrict)
    # It warns that ThreadSanitizer ignores fences; ours order memory between processes.
    target_compile_options(reshard_flags INTERFACE -Wno-tsan)
  endif()
  target_link_options(reshard_flags INTERFACE -fsanitize=${RESHARD_SANITIZE})
endif()

# For every target, of tests and modules too: of an inline function that several objects have, the linker keeps one.
# With -pthread g++ counts atomically, as threads need it; ccache would refuse -fprofile-update=atomic.
if(RESHARD_COVERAGE)
  string(APPEND CMAKE_CXX_FLAGS " -O0 --coverage -pthread")
  add_library(reshard_coverage_exit SHARED ${PROJECT_SOURCE_DIR}/cmake/coverage/exit.cc)
  add_library(reshard_coverage_image OBJECT ${PROJECT_SOURCE_DIR}/cmake/coverage/image.cc)
  target_include_directories(reshard_coverage_exit PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(reshard_coverage_image PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(reshard_flags INTERFACE $<TARGET_OBJECTS:reshard_coverage_image> reshard_coverage_exit)
endif()

find_program(RESHARD_CCACHE ccache)
if(RESHARD_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/ccache.sh ${RESHARD_CCACHE})
endif()
