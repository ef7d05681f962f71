#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What to ask a GPU first, in slices that can be run one by one: each is meant to take under three minutes on an H100 with 16
# cores, alone on the machine, and leaves <folder>/<slice>.txt. Runs in a bundle of tools/gpu_build.sh, on GPU 0.
#
#   gpu-bundle/first_hour.sh FOLDER [SLICE ...]     all slices, in this order, if none is named; exit code 1 if one failed:
#     driver      the driver, the GPU, and what only a driver answers
#     tests       the tests of one process; kernels as older drivers get them
#     processes   the tests and refits of several processes; NCCL and NVSHMEM, if they are found
#     python      the package, with this machine's torch
#     kernels     kernels against the driver's own copy
#     refits      refits against the driver's own copy, and torch's ways; merging adapters, and PEFT's way
#     sanitizers  memcheck and racecheck
set -uo pipefail
folder=$(realpath -m "$1")
shift
mkdir -p "$folder"
cd "$(dirname "${BASH_SOURCE[0]}")"
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
python=${PYTHON:-python3}
# Where torch's NCCL and NVSHMEM are found.
export VIRTUAL_ENV=${VIRTUAL_ENV:-$("$python" -c 'import sys; print(sys.prefix)')}
jobs=$(nproc)

# Runs a command with a deadline; its output, how it ended and how long it took go to the slice's file at once.
#   ask <seconds> <command ...>
ask() {
  local begin=$EPOCHREALTIME output code
  output=$(timeout -k 5 "$1" "${@:2}" 2>&1)
  code=$?
  local took=$(((${EPOCHREALTIME/./} - ${begin/./}) / 1000))
  [ $code -eq 0 ] || output+=$'\n'"FAILED: exit $code (124: deadline) of: ${*:2}"
  printf '%s\n[%s.%03d s] %s\n' "$output" $((took / 1000)) $((took % 1000)) "${*:2}" >>"$folder/$slice.txt"
  return $code
}
export -f ask
export folder slice

# Why something is left out, on the screen, too.
skip() {
  echo "first_hour: $slice: $* skipped" | tee -a "$folder/$slice.txt"
}

# Tests of a program, each with a process of its own: a process that has used CUDA cannot fork others that do. Each starts
# several, and the driver makes one context at a time.
#   each <program> <filter>
each() {
  bin/"$1" --gtest_list_tests --gtest_filter="$2" | awk '/^[A-Z].*\.$/ {suite = $1} /^  / {print suite $1}' |
    xargs -P $(((jobs + 3) / 4)) -I{} bash -c "ask 60 bin/$1 --gtest_brief=1 --gtest_filter={}"
}

driver() {
  ask 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory --format=csv
  ask 60 "$python" questions.py
  ask 60 bin/reshard transports
  ask 120 bin/reshard run --model examples/configs/qwen3-4b.json --layers 1 --from megatron:tp=2 --to vllm:tp=2 \
    --device cuda --repeat 1 --verify
}

tests() {
  export RESHARD_TEST_GPU=0
  ask 170 bin/reshard_cuda_tests --gtest_brief=1 &
  RESHARD_CUDA_IMAGE=$PWD/portable_kernels.fatbin ask 170 bin/reshard_cuda_tests --gtest_brief=1 &
  # Compiled by the driver, without what it has kept.
  CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1 RESHARD_CUDA_IMAGE=$PWD/portable_kernels.fatbin \
    ask 170 bin/reshard_cuda_tests --gtest_brief=1 --gtest_filter='-*KernelImage*' &
  ask 170 bin/reshard_exec_tests --gtest_brief=1 --gtest_filter='*gpus*-Shm*' &
  ask 170 bin/reshard_refit_tests --gtest_brief=1 --gtest_filter='*Device*' &
  ask 170 bin/reshard_refit_tests --gtest_brief=1 --gtest_filter='OnGpu/PartialSessions*' &
  ask 170 bin/reshard_refit_tests --gtest_brief=1 --gtest_filter='OnGpu/QuantisedSessions*' &
  ask 60 bin/reshard_cli_tests --gtest_brief=1 --gtest_filter='DeviceRun*' &
  wait
}

processes() {
  export RESHARD_TEST_GPU=0
  each reshard_exec_tests 'SharedGpuMemory*:GpuPeers*:Shm*gpus*'
  each reshard_refit_tests 'OnGpu/QuantisedProcesses*'
  local refit="bin/reshard run --model demo-moe --spawn --verify"
  local both="--device cuda:0 --from megatron:ep=2 --to vllm:tp=2"
  ask 60 $refit $both --transport shm
  ask 60 $refit $both --transport shm --path message --check-fingerprints
  ask 60 $refit --device cuda:0 --from megatron:ep=2 --to vllm:tp=2,quant=mxfp8 --transport shm
  local library gpus
  gpus=$(nvidia-smi -L | wc -l)
  for library in nccl nvshmem; do
    bin/reshard transports | grep -q "^$library *yes" || { skip "$library: $(bin/reshard transports | grep "^$library"):"; continue; }
    ask 60 $refit --device cuda:0 --from megatron:tp=1 --to vllm:tp=1 --transport $library
    # Two ranks on one GPU: NCCL refuses that, NVSHMEM may take it.
    [ $library = nvshmem ] || [ "$gpus" -gt 1 ] || { skip "NCCL between ranks: there is one GPU:"; continue; }
    ask 60 $refit --device cuda --from megatron:ep=2 --to vllm:tp=2 --transport $library --check-fingerprints
    ask 60 $refit --device cuda --from megatron:ep=2 --to vllm:tp=2 --transport $library --path message
    ask 60 $refit --device cuda --from megatron:ep=2 --to vllm:tp=2,quant=mxfp8 --transport $library
  done
}

python() {
  export RESHARD_TEST_GPU=0 PYTHONPATH=$PWD/python
  local cases why
  why=$("$python" -c 'import pytest, torch, reshard; assert torch.cuda.is_available(), "torch sees no GPU"' 2>&1) ||
    { skip "the package: $(tail -n 1 <<<"$why"):"; return; }
  for cases in python/tests/gpu_*cases.py; do
    ask 120 "$python" -m pytest -q --no-header -p no:cacheprovider -rs --timeout 60 "$cases" &
  done
  wait
}

kernels() {
  local kind
  while read -r kind; do
    # shellcheck disable=SC2086
    ask 40 bin/gpu_kernels_bench --mib 1024 --rounds 15 --kind $kind
  done <<'KINDS'
copy --run 16384
copy --run 1856 --pitch 3712
copy --run 192 --pitch 1536
slices --run 1024 --pitch 2048
slices --run 192 --pitch 256
cast
transpose --matrix 2880x2880
quantise --format mxfp8
quantise --format mxfp8_swizzled
quantise --format fp8_block
quantise --format fp8_channel
quantise --format nvfp4
fingerprint --matrix 4096x14336
fingerprint --matrix 2048x768
fingerprint --matrix 2688x1856
fingerprint_columns --run 192 --pitch 1536
fingerprint_transposed --matrix 2880x2880
beside --run 4096 --pitch 8192
KINDS
}

refits() {
  ask 150 "$python" bench/run.py --build . --only gpu --quick --out "$folder"
  PYTHONPATH=$PWD/python ask 100 "$python" bench/python/gpu_peers.py
  PYTHONPATH=$PWD/python ask 60 "$python" bench/python/lora_merge.py
}

sanitizers() {
  local tool sanitizer api
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
    { skip "memcheck and racecheck: there is no compute-sanitizer:"; return; }
  export RESHARD_TEST_GPU=0 RC_PARAMS=max_success=5
  for tool in memcheck racecheck; do
    # A driver says "invalid value" of addresses that are not its own, which is asked.
    [ $tool = memcheck ] && api='--report-api-errors no' || api=
    ask 170 "$sanitizer" --tool $tool $api --error-exitcode 1 bin/reshard_cuda_tests --gtest_brief=1 &
    ask 170 "$sanitizer" --tool $tool $api --error-exitcode 1 bin/reshard_refit_tests --gtest_brief=1 \
      --gtest_filter='*Device*' &
  done
  wait
}

[ $# -gt 0 ] || set -- driver tests processes python kernels refits sanitizers
all_passed=true
for slice in "$@"; do
  : >"$folder/$slice.txt"
  $slice
  failed=$(grep -c '^FAILED' "$folder/$slice.txt")
  echo "first_hour: $slice: $failed of $(grep -c '^\[[0-9.]* s\]' "$folder/$slice.txt") failed: $folder/$slice.txt"
  grep '^FAILED' "$folder/$slice.txt" && all_passed=false
done
$all_passed
