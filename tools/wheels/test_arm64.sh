#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs C++ tests for arm64 under qemu, compiled as the wheels are: those of the lowest rooms, which have the kernels.
#
#   tools/wheels/test_arm64.sh <folder> <jobs> <system> <room>...
#
# <folder> is that of tools/wheels.sh, which has built a wheel for aarch64 there; its objects are shared. <system> is a
# Debian for arm64, as tools/wheels/try.sh unpacks it. Rooms: base index layout sharding memory transform.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath "$1") jobs=$2 system=$(realpath "$3")
shift 3
place=$folder/aarch64 sources=$folder/sources
prefix=$place/test_prefix log=$place/tests.log
: >"$log"
trap '[ $? = 0 ] || { tail -n 20 "$log" >&2; echo "test_arm64: failed; all of it: $log" >&2; }' EXIT

if ! compgen -G "$sources/rapidcheck-*" >/dev/null; then
  options=(-o Dir::Etc::sourcelist="$sources/of.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$sources/lists"
    -o APT::Sandbox::User=root)
  (cd "$sources" && apt-get "${options[@]}" -qq source rapidcheck) >>"$log" 2>&1
fi

# GoogleTest and rapidcheck as static libraries, and a benchmark that nothing is built with.
library() { # <name> <folder> <source>... : also with options of the compiler
  local name=$1 objects=$prefix/objects/$1
  shift
  mkdir -p "$objects" "$prefix/lib"
  (cd "$objects" && printf '%s\0' "${@:2}" | xargs -0 -n 1 -P "$jobs" "$place/bin/c++" -std=c++17 -O1 -fPIC \
    -I"$1/include" -I"$1" -I/usr/src/googletest/googletest/include -c) >>"$log" 2>&1
  "$place/bin/ar" rcs "$prefix/lib/lib$name.a" "$objects"/*.o
}
if [ ! -e "$prefix/complete" ]; then
  rm -rf "$prefix"
  rapidcheck=$(cd "$sources"/rapidcheck-*/ && pwd)
  mapfile -t sources_of_rapidcheck < <(find "$rapidcheck/src" -name '*.cpp')
  library rapidcheck "$rapidcheck" "${sources_of_rapidcheck[@]}"
  library gtest /usr/src/googletest/googletest /usr/src/googletest/googletest/src/gtest-all.cc
  library gtest_main /usr/src/googletest/googletest /usr/src/googletest/googletest/src/gtest_main.cc
  library gmock /usr/src/googletest/googlemock /usr/src/googletest/googlemock/src/gmock-all.cc
  mkdir -p "$prefix/include" "$prefix/lib/cmake"
  cp -r /usr/include/{rapidcheck,rapidcheck.h,gtest,gmock} "$prefix/include/"
  package() { # <package> <targets...>: a config of static libraries that have the targets' names
    mkdir -p "$prefix/lib/cmake/$1"
    local target
    echo 'include_guard()' >"$prefix/lib/cmake/$1/${1,,}-config.cmake"
    for target in "${@:2}"; do
      echo "add_library($target INTERFACE IMPORTED)"
      echo "target_include_directories($target INTERFACE $prefix/include)"
      echo "target_link_libraries($target INTERFACE $prefix/lib/lib${target#*::}.a)"
    done >>"$prefix/lib/cmake/$1/${1,,}-config.cmake"
  }
  package rapidcheck rapidcheck
  package GTest GTest::gtest_main GTest::gmock GTest::gtest
  package benchmark benchmark::benchmark benchmark::benchmark_main
  echo "target_link_libraries(GTest::gmock INTERFACE GTest::gtest)
target_link_libraries(GTest::gtest_main INTERFACE GTest::gtest)" >>"$prefix/lib/cmake/GTest/gtest-config.cmake"
  touch "$prefix/complete"
fi

rm -f "$place/build/CMakeCache.txt"
cmake -G Ninja -S . -B "$place/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$PWD/tools/wheels/cmake/toolchain.cmake" \
  -DRESHARD_WHEEL_ARCH=aarch64 -DRESHARD_WHEEL_TOOLS="$place" -DRESHARD_WITH_CUDA=OFF -DRESHARD_DEV=ON -DRESHARD_WITH_GLOO=OFF \
  -DGTest_DIR="$prefix/lib/cmake/GTest" -Drapidcheck_DIR="$prefix/lib/cmake/rapidcheck" -Dbenchmark_DIR="$prefix/lib/cmake/benchmark" \
  -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64-static;-L;$system" >>"$log" 2>&1
# qemu notes each page of address space that a program reserves, and reshard reserves 4 TiB where there is as much. The
# tests that ask for it are left out.
export GTEST_FILTER=-AddressRange.has_more_bytes_than_the_machine_has_memory:AddressRange.gives_addresses_back
export QEMU_RESERVED_VA=32G
for room in "$@"; do
  cmake --build "$place/build" -j "$jobs" --target "reshard_${room}_tests" >>"$log" 2>&1
  SECONDS=0
  qemu-aarch64-static -L "$system" "$place/build/bin/reshard_${room}_tests" --gtest_brief=1 >"$place/$room.tests" 2>&1 ||
    { grep -B 20 FAILED "$place/$room.tests" >>"$log"; exit 1; }
  echo "arm64: $room: $(grep -o '[0-9]* tests\? from' "$place/$room.tests" | head -n 1 | cut -d' ' -f1) tests passed in $SECONDS s"
done
