#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages of the named groups that are not there yet; does nothing when all are.
#
#   tools/install_deps.sh build            what the program needs
#   tools/install_deps.sh build test       ... and its tests
#   groups: build test coverage fuzz wheels lint site browser
set -euo pipefail

packages_of() {
  case $1 in
    build) echo g++ cmake ninja-build ccache libfmt-dev nlohmann-json3-dev libcli11-dev \
      libexpected-dev libxxhash-dev libspdlog-dev libsodium-dev zlib1g-dev ;;
    test) echo libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev python3-dev python3-venv \
      libopenmpi-dev openmpi-bin libmpich-dev mpich libgloo-dev libucx-dev libdw-dev pkg-config ;;
    coverage) echo gcovr ;;
    fuzz) echo clang-19 libclang-rt-19-dev ;;
    wheels) echo autoconf automake libtool dpkg-dev debootstrap qemu-user-static python3-venv ;;
    lint) echo clang-format-19 clang-tidy-19 clang-tools-19 python3 ;;
    site) echo doxygen python3-venv ;;
    browser) echo chromium ;;
    *) echo "install_deps: unknown group '$1'; known: build test coverage fuzz wheels lint site browser" >&2; return 2 ;;
  esac
}

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

wanted=()
for group in "$@"; do
  packages=$(packages_of "$group")
  read -ra names <<<"$packages"
  wanted+=("${names[@]}")
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  # Not a Debian: the tools may be there under other package names, so ask CMake rather than refuse.
  if command -v cmake >/dev/null && command -v ninja >/dev/null && command -v c++ >/dev/null; then
    exit 0
  fi
  echo "install_deps: this is not a Debian; install what these Debian 12 packages hold: ${wanted[*]}" >&2
  exit 1
fi

missing=()
for name in "${wanted[@]}"; do
  installed "$name" || missing+=("$name")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ]; then
  as_root=(env)
elif command -v sudo >/dev/null; then
  as_root=(sudo env)
else
  echo "install_deps: neither root nor sudo; ask an administrator for: apt-get install ${missing[*]}" >&2
  exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >"$log" 2>&1 ||
    { tail -n 15 "$log" >&2; echo "install_deps: apt-get $1 failed" >&2; exit 1; }
}

SECONDS=0
echo "deps: installing ${missing[*]}"
apt update
apt install -y --no-install-recommends "${missing[@]}"
echo "deps: ${#missing[@]} packages installed in $SECONDS s"
