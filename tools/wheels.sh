#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels that anyone can install: manylinux_2_28 for x86_64 and aarch64, for Python 3.10, 3.11, and 3.12 and
# later. What they contain is compiled by zig for glibc 2.28, whatever this machine has (docs/install.md).
#
#   tools/wheels.sh <folder> <jobs> <images> [x86_64] [aarch64]
#
# <folder>/dist has the wheels and the source distribution. <images> has the kernels for GPUs of a build of the same
# sources, which are the same for all processors: <build folder>/generated. Needs Python 3.10, 3.11 and 3.12 or later with their headers, on PATH or of pyenv;
# RESHARD_WHEEL_PYTHONS="3.12" builds for fewer. The stubs of all are those of the x86_64 wheel of the newest Python.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
folder=$(realpath "$1") jobs=$2 images=$(realpath "$3")
shift 3
[ $# -gt 0 ] || set -- x86_64 aarch64
read -ra versions <<<"${RESHARD_WHEEL_PYTHONS:-3.12 3.11 3.10}"
export JOBS=$jobs CMAKE_BUILD_PARALLEL_LEVEL=$jobs PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { echo "wheels: $*" >&2; exit 1; }
[ "$(uname -m)" = x86_64 ] || fail "wheels are built on x86_64, where the extension can be asked for its stubs"

# The Python of a version, or the newest later one for the stable ABI.
interpreter() {
  local wanted=("$1")
  [ "$1" != 3.12 ] || wanted=(3.12 3.13 3.14)
  local version found
  for version in "${wanted[@]}"; do
    for found in $(command -v "python$version" || true) "$HOME/.pyenv/versions/$version".*/bin/python; do
      if "$found" -c 'import sys, sysconfig, pathlib
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
         or "%d.%d" % sys.version_info[:2] != sys.argv[1])' "$version" 2>/dev/null; then
        echo "$found"
        return
      fi
    done
  done
  fail "no Python $1 with its headers: pyenv install $1, or put python$1 on PATH"
}

log=$folder/wheels.log
: >"$log"
quietly() { "$@" >>"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "$1 failed; all of it: $log"; }; }

environment() { # <folder> <python> <requirements>
  [ -x "$1/bin/python" ] || quietly "$2" -m venv "$1"
  quietly "$1/bin/python" -m pip install --quiet -r "tools/wheels/$3"
}
tools=$folder/tools
environment "$tools" python3 requirements-tools.txt
for version in "${versions[@]}"; do
  python=$(interpreter "$version")
  environment "$folder/env-$version" "$python" requirements.txt
done
zig=$("$tools/bin/python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).with_name("zig"))')

# ccache cannot tell what a script compiles with.
export CCACHE_COMPILERTYPE=clang
compiler="zig $("$zig" version)"

build_wheel() { # <arch> <version>
  local arch=$1 version=$2 place=$folder/$1
  local suffix=.cpython-${version/./}-$arch-linux-gnu.so
  # Python's places are found anew; the objects of the library are kept.
  rm -f "$place/build/CMakeCache.txt"
  local settings=(
    "build-dir=$place/build"
    "cmake.define.CMAKE_TOOLCHAIN_FILE=$PWD/tools/wheels/cmake/toolchain.cmake"
    "cmake.define.RESHARD_WHEEL_ARCH=$arch"
    "cmake.define.RESHARD_WHEEL_TOOLS=$place"
    "cmake.define.RESHARD_WITH_CUDA=OFF"
    "cmake.define.RESHARD_CUDA_IMAGES=$images"
    "cmake.define.RESHARD_PYTHON_STUBS=$([ "$arch-$version" = "x86_64-${versions[0]}" ] || echo "$folder/_core.pyi")"
    "install.strip=false"
  )
  CCACHE_COMPILERCHECK="string:$compiler $arch glibc 2.28" _PYTHON_HOST_PLATFORM=linux-$arch \
    SETUPTOOLS_EXT_SUFFIX=$suffix quietly "$folder/env-$version/bin/python" -m pip wheel . --no-build-isolation --no-deps \
    --wheel-dir "$folder/raw" "${settings[@]/#/--config-settings=}"
}

# auditwheel knows the policies of one machine. What it is told to leave out, transports load when they are asked for, from
# a system that has it.
repair_wheel() { # <arch>
  PATH=$tools/bin:$PATH quietly "$tools/bin/python" -c 'import platform, sys
arch = sys.argv.pop(1)
platform.machine = lambda: arch
from auditwheel.main import main
sys.exit(main())' "$1" repair --plat "manylinux_2_28_$1" --only-plat --exclude 'libmpi.so.*' --exclude 'libmpich.so.*' \
    --exclude 'libucp.so.*' --exclude 'libucs.so.*' --wheel-dir "$folder/dist" "$folder"/raw/reshard-*.whl
}

rm -rf "$folder/dist" && mkdir "$folder/dist"
quietly "$folder/env-${versions[0]}/bin/python" -c 'import sys, scikit_build_core.build as build
build.build_sdist(sys.argv[1])' "$folder/dist"
if [ ! -e "$images/kernels.fatbin" ]; then
  images=
  echo "wheels: without kernels for GPUs, which nvcc compiles"
fi
for arch in "$@"; do
  SECONDS=0
  tools/wheels/third_party.sh "$zig" "$folder/$arch" "$arch"
  for version in "${versions[@]}"; do
    rm -rf "$folder/raw"
    build_wheel "$arch" "$version"
    [ "$arch-$version" != "x86_64-${versions[0]}" ] || cp "$folder/x86_64/build/python/reshard/_core.pyi" "$folder/_core.pyi"
    repair_wheel "$arch"
  done
  echo "wheels: $arch in $SECONDS s"
done
"$tools/bin/python" tools/wheels/check.py "$folder"/dist/*.whl
