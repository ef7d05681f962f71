#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the extension of the package reshard with AddressSanitizer and UndefinedBehaviorSanitizer, and runs the Python
# tests with it. The interpreter, torch and numpy are not instrumented, and their leaks not searched.
#
#   tools/python_asan.sh <build folder> <folder of the program and the virtual environment> <jobs> [arguments of pytest]
set -euo pipefail
build=$1
plain=$(realpath "$2")
jobs=$3
shift 3

# Without the stubs: making them imports the extension.
for target in reshard_core reshard_modules; do
  tools/build.sh "$build" "$jobs" $target -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRESHARD_SANITIZE=address,undefined \
    -DRESHARD_DEV=OFF -DRESHARD_CLI=OFF -DRESHARD_INSTALL=OFF -DRESHARD_PYTHON=ON \
    -DPython_EXECUTABLE="$plain/venv/bin/python"
done
cp "$plain/python/reshard/_core.pyi" "$build/python/reshard/"
ln -sfn "$PWD/examples/configs" "$build/python/reshard/configs"

# The sanitizer must be loaded before anything else, with the library whose exceptions it watches.
libraries="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)"
export PYTHONPATH RESHARD_BIN=$plain/bin/reshard
PYTHONPATH=$(realpath "$build")/python
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
LD_PRELOAD=$libraries "$plain/venv/bin/python" -c \
  'import reshard._core as c, sys; c.__file__.startswith(sys.argv[1]) or sys.exit(f"{c.__file__} has no sanitizer")' \
  "$PYTHONPATH"
LD_PRELOAD=$libraries "$plain/venv/bin/python" -m pytest -q --no-header -p no:cacheprovider python/tests "$@"
