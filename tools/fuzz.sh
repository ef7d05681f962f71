#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz program of a build folder for a while, from its seeds in tests/fuzz/corpus/<program> if
# there are any. What it learns and what crashes it stays in <folder>/corpus and <folder>/crashes.
#
#   FUZZ_SECONDS=30 tools/fuzz.sh <build folder>
set -euo pipefail
build=$1
seconds=${FUZZ_SECONDS:-30}
mkdir -p "$build/crashes"

ran=0
for program in "$build"/bin/fuzz_*; do
  [ -x "$program" ] || continue
  name=$(basename "$program")
  corpora=("$build/corpus/$name")
  mkdir -p "${corpora[0]}"
  if [ -d "tests/fuzz/corpus/$name" ]; then corpora+=("tests/fuzz/corpus/$name"); fi
  log=$build/crashes/$name.log
  "$program" -dict=tests/fuzz/json.dict -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -verbosity=0 -artifact_prefix="$build/crashes/$name-" "${corpora[@]}" >"$log" 2>&1 ||
    { tail -n 40 "$log" >&2; echo "fuzz: $name failed; the input is in $build/crashes" >&2; exit 1; }
  echo "fuzz: $name found nothing in $seconds s"
  ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "fuzz: no program named fuzz_* in $build/bin" >&2; exit 1; }
