#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the C++ tests, then the Python ones, and ends with the line "N passed, N failed".
#
#   tools/run_tests.sh <build folder> [arguments of ctest]
#   RESHARD_NO_PYTEST=1   only the C++ tests
set -euo pipefail
build=$(realpath "$1")
shift
reports=$build/reports
rm -rf "$reports"
mkdir -p "$reports"
export RESHARD_BIN=$build/bin/reshard

# On a terminal every line as it comes; otherwise what is not about a test that passed.
show() {
  if [ -t 1 ]; then cat; else grep -avE '^ *Start +[0-9]+: | Passed +[0-9.]+ sec$|^$' || true; fi
}

ok=true
SECONDS=0
# One more than cores: many tests wait for other processes most of the time.
ctest --test-dir "$build" --output-on-failure -j $(($(nproc) + 1)) --timeout 600 "$@" \
  --output-junit "$reports/ctest.xml" 2>&1 | show || ok=false
echo "ctest: done in $SECONDS s"

# pytest_in <environment> <folder> [options]: its report is named after the folder.
pytest_in() {
  local begin=$SECONDS status=0
  "$build/$1/bin/python" -m pytest -q --no-header -p no:cacheprovider "${@:2}" \
    --junitxml "$reports/pytest-${2//\//-}.xml" || status=1
  echo "pytest: $2 done in $((SECONDS - begin)) s"
  return $status
}
if [ -z "${RESHARD_NO_PYTEST:-}" ]; then
  SECONDS=0
  # Two processes, each with whole files.
  pytest_in venv python/tests -n 2 --dist loadfile >"$reports/pytest.log" 2>&1 &
  beside=$!
  pytest_in venv tests/python || ok=false
  # Megatron-Core warns about itself, hundreds of times.
  pytest_in megatron-venv tests/megatron --disable-warnings || ok=false
  wait $beside || ok=false
  cat "$reports/pytest.log"
  echo "pytest: done in $SECONDS s"
fi

# A run whose tests all passed but that ended badly (a crash at exit, say) fails too.
$ok || flag=--failed
exec python3 tools/test_summary.py ${flag:-} "$reports"
