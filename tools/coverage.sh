#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a build with RESHARD_COVERAGE and reports which lines and branches they ran: a table of the rooms
# here, the sources in <folder>/report/index.html, the lines that did not run in <folder>/report/files.txt.
# Fails when a test fails, or a room is below the bound of tools/coverage_table.py.
#
#   tools/coverage.sh <folder> <jobs>
#   RESHARD_COVERAGE_TESTS=done   report of the tests that ran before, without running any
set -euo pipefail
build=$1
jobs=$2
report=$build/report
ok=true
# Some tests forbid the program to write files: gcov says so to nobody.
export GCOV_ERROR_FILE=/dev/null

if [ "${RESHARD_COVERAGE_TESTS:-}" != done ]; then
  find "$build" -name '*.gcda' -delete
  # Slow tests would take hours with counters; what those labelled style check is not run by them.
  tools/run_tests.sh "$build" -LE 'slow|style' || ok=false
fi

lacking=()
grep -qw avx512bw /proc/cpuinfo || lacking=(--exclude '.*_avx512.*')

SECONDS=0
rm -rf "$report"
mkdir -p "$report"
gcovr --config gcovr.cfg --root . -j "$jobs" --object-directory "$build" "${lacking[@]}" \
  --json-summary "$report/summary.json" --txt "$report/files.txt" \
  --html-details "$report/index.html" --html-title 'reshard: lines and branches that the tests ran' "$build"
echo "gcovr: done in $SECONDS s; $report/index.html"
python3 tools/coverage_table.py "$report/summary.json" || ok=false
$ok
