#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel of the package reshard in the folder of the program, so that nothing is compiled twice, and installs
# it into the environment in <folder>/venv, and into that of Megatron-Core if it is there.
#
#   tools/python_wheel.sh <build folder>
set -euo pipefail
build=$(realpath "$1")
python=$build/venv/bin/python

# The folder keeps its settings: turning tests off in it would delete their objects.
setting() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" 2>/dev/null | grep . || echo "$2"; }
RESHARD_WHEEL_DEV=$(setting RESHARD_DEV OFF)
RESHARD_WHEEL_CLI=$(setting RESHARD_CLI ON)
RESHARD_WHEEL_INSTALL=$(setting RESHARD_INSTALL ON)
export RESHARD_WHEEL_DEV RESHARD_WHEEL_CLI RESHARD_WHEEL_INSTALL

SECONDS=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pip() {
  "$python" -m pip --quiet --disable-pip-version-check "$@" >"$log" 2>&1 ||
    { tail -n 40 "$log" >&2; echo "python: pip $1 failed" >&2; exit 1; }
}
rm -rf "$build/wheels"
pip wheel . --no-build-isolation --no-deps --wheel-dir "$build/wheels" --config-settings "build-dir=$build" \
  --config-settings "cmake.build-type=$(setting CMAKE_BUILD_TYPE Release)"
wheel=$(echo "$build"/wheels/reshard-*.whl)
pip install --no-deps --no-index --force-reinstall "$wheel"
if [ -x "$build/megatron-venv/bin/python" ]; then
  python=$build/megatron-venv/bin/python
  pip install --no-deps --no-index --force-reinstall "$wheel"
fi
echo "wheel: $(basename "$wheel"), $(du -k "$wheel" | cut -f1) kB, installed in $SECONDS s"
