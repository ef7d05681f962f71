#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the micro-benchmarks of every room, then the end-to-end ones. Reports: <folder>/bench-reports/.
#
#   tools/bench.sh <build folder> <jobs>
#   BENCH_FILTER=<regex>   only these micro-benchmarks
set -euo pipefail
build=$1
jobs=$2
out=$build/bench-reports
mkdir -p "$out"

mapfile -t targets < <(ninja -C "$build" -t targets all | sed -nE 's/^(bin\/reshard_[a-z]+_bench): .*/\1/p' | sort)
if [ ${#targets[@]} -gt 0 ]; then
  ninja -C "$build" -j "$jobs" "${targets[@]}"
fi
for target in "${targets[@]}"; do
  name=$(basename "$target")
  echo "== $name"
  "$build/$target" --benchmark_filter="${BENCH_FILTER:-.}" \
    --benchmark_out="$out/$name.json" --benchmark_out_format=json
done
if [ -f bench/run.py ]; then python3 bench/run.py --build "$build"; fi
echo "bench: reports are in $out"
