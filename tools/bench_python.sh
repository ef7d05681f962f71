#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the benchmarks of the Python package against the libraries that its users would call instead.
#
#   tools/bench_python.sh <build folder>
#
# Reports: <build folder>/bench-reports/python-*.txt.
set -euo pipefail
build=$1
python=$build/bench-venv/bin/python
out=$build/bench-reports
checkpoint=$build/bench-checkpoint
mkdir -p "$out"

run() {
  echo "== $1"
  "$python" -W ignore "bench/python/$1.py" "${@:2}" 2>"$out/python-$1.log" | tee "$out/python-$1.txt" ||
    { tail -n 5 "$out/python-$1.log" >&2 && exit 1; }
}

# Twelve of qwen3-4b's 36 layers, 3 GB on disk.
[ -d "$checkpoint" ] || "$build/bin/reshard" synth qwen3-4b "$checkpoint" --layers 12 >/dev/null
run hf_load "$checkpoint" vllm:tp=4 4
run planners llama-3.1-8b 64 3
run xferdtensor 16 2048 8
run megatron_refit 2048 8 5 2
echo "bench: reports are in $out"
