#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What to ask a GPU first, in slices that can be run one by one: each is meant to take under three minutes on an H100 with 16
# cores, alone on the machine, and leaves <folder>/<slice>.txt. Runs in a bundle of tools/gpu_build.sh, on GPU 0.
#
#   gpu-bundle/first_hour.sh FOLDER [SLICE ...]     all slices, in this order, if none is named; exit code 1 if one failed:
#     driver      the driver, the GPU, and what only a driver answers
#     tests       the tests of one process; kernels as older drivers get them
#     processes   the tests and refits of several processes; NVSHMEM, if it is found
#     nccl        messages and refits over NCCL, if it is found; on one GPU, with 2.30 or later
#     ucx         the same over UCX, if it is found
#     python      the package, with this machine's torch
#     megatron    refits of Megatron-Core's modules between four processes, by the package, if it is installed
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

# Runs a command or an exported function with a deadline; its output, how it ended and how long it took go to the slice's
# file at once.
#   ask <seconds> <command ...>
ask() {
  local begin=$EPOCHREALTIME output code
  # A function runs in a shell, because timeout starts programs only.
  if [ "$(type -t "$2")" = function ]; then output=$(timeout -k 5 "$1" bash -c '"$@"' bash "${@:2}" 2>&1)
  else output=$(timeout -k 5 "$1" "${@:2}" 2>&1); fi
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
  ask 60 bin/reshard_dtensor_tests --gtest_brief=1 --gtest_filter='*gpu*' &
  wait
}

processes() {
  export RESHARD_TEST_GPU=0
  each reshard_exec_tests 'SharedGpuMemory*:GpuPeers*:Shm*gpus*'
  each reshard_refit_tests 'OnGpu/QuantisedProcesses*'
  local refit="bin/reshard run --model demo-moe --spawn --verify"
  local both="--device cuda:0 --from megatron:ep=2 --to vllm:tp=2"
  ask 60 $refit $both --transport shm
  ask 60 $refit $both --transport shm --path message --verify=fingerprints
  ask 60 $refit --device cuda:0 --from megatron:ep=2 --to vllm:tp=2,quant=mxfp8 --transport shm
  finds nvshmem || return 0
  ask 60 $refit --device cuda:0 --from megatron:tp=1 --to vllm:tp=1 --transport nvshmem
  ask 60 $refit --device cuda --from megatron:ep=2 --to vllm:tp=2 --transport nvshmem --verify=fingerprints
  ask 60 $refit --device cuda --from megatron:ep=2 --to vllm:tp=2 --transport nvshmem --path message
  ask 60 $refit --device cuda --from megatron:ep=2 --to vllm:tp=2,quant=mxfp8 --transport nvshmem
}

# Refits between processes by messages of a transport, plain and quantised.
#   refits_over <transport> [VARIABLE=VALUE ...]
refits_over() {
  local refit="bin/reshard run --model demo-moe --spawn --verify --device cuda --path message --transport $1"
  ask 60 env "${@:2}" $refit --from megatron:ep=2 --to vllm:tp=2 --verify=fingerprints
  ask 60 env "${@:2}" $refit --from megatron:ep=2 --to vllm:tp=2,quant=mxfp8
  ask 60 env "${@:2}" $refit --from megatron:ep=4 --to vllm:tp=4
}

nccl() {
  export RESHARD_TEST_GPU=0
  finds nccl || return 0
  # NCCL refuses two ranks on one GPU unless it is told not to, and before 2.30 always.
  if [ "$(nvidia-smi -L | wc -l)" -eq 1 ]; then
    [[ $(bin/reshard transports | grep -o 'NCCL 2\.[0-9]*') =~ NCCL\ 2\.[3-9][0-9] ]] ||
      { skip "$(bin/reshard transports | grep -o 'NCCL [0-9.]*') between ranks: there is one GPU:"; return 0; }
    export NCCL_MULTI_RANK_GPU_ENABLE=1
  fi
  refits_over nccl
  refits_over nccl CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_LAUNCH_ORDER_IMPLICIT=1
  ask 110 hosts nccl
  # The two that are left out take minutes where kernels that wait for each other take turns.
  each reshard_nccl_gpu_tests '*-*/1_ranks:*/5_ranks:*/8_ranks:*very_many_small_messages*:*a_peer_that_leaves_fails*'
}

ucx() {
  export RESHARD_TEST_GPU=0
  finds ucx || return 0
  bin/reshard transports | grep '^ucx' | grep -q 'in place: ' && { skip "UCX without GPU memory:"; return 0; }
  refits_over ucx
  each reshard_ucx_gpu_tests '*-*/3_ranks:*/5_ranks:*/8_ranks'
  each reshard_ucx_gpu_refit_tests '*'
}

# A refit by messages between the 12 processes of what NCCL takes for 3 hosts.
#   hosts <transport>
hosts() {
  local rank code=0 meet
  meet=$(mktemp -d)
  for rank in {0..11}; do
    NCCL_HOSTID=host$((rank / 4)) NCCL_SOCKET_IFNAME=lo RANK=$rank WORLD_SIZE=12 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=12 \
      bin/reshard run --model examples/configs/qwen3-30b-a3b.json --layers 1 --from megatron:ep=8,etp=1,dp=8 \
      --to vllm:tp=4,offset=8 --device cuda:0 --path message --repeat 2 --verify --deadline 100 --transport "$1" \
      --rendezvous "file://$meet" &
  done
  for rank in $(jobs -p); do wait "$rank" || code=$?; done
  rm -r "$meet"
  return $code
}
export -f hosts

# True if this machine has a transport; else says why not.
#   finds <transport>
finds() {
  bin/reshard transports | grep -q "^$1 *yes" || { skip "$1: $(bin/reshard transports | grep "^$1"):"; return 1; }
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

megatron() {
  export RESHARD_TEST_GPU=0 PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} RESHARD_BIN=$PWD/bin/reshard
  local why shared=
  why=$("$python" -c 'import pytest, torch, reshard, megatron.core' 2>&1) || { skip "$(tail -n 1 <<<"$why"):"; return; }
  # Torch's own NCCL may be too old for ranks that share a GPU.
  [[ $(bin/reshard transports | grep -o 'NCCL 2\.[0-9]*') =~ NCCL\ 2\.[3-9][0-9] ]] && shared=NCCL_MULTI_RANK_GPU_ENABLE=1
  ask 170 env $shared "$python" -m pytest -q --no-header -p no:cacheprovider -rs --disable-warnings tests/megatron/test_refit.py
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

[ $# -gt 0 ] || set -- driver tests processes nccl ucx python megatron kernels refits sanitizers
all_passed=true
for slice in "$@"; do
  : >"$folder/$slice.txt"
  $slice
  failed=$(grep -c '^FAILED' "$folder/$slice.txt")
  echo "first_hour: $slice: $failed of $(grep -c '^\[[0-9.]* s\]' "$folder/$slice.txt") failed: $folder/$slice.txt"
  grep '^FAILED' "$folder/$slice.txt" && all_passed=false
done
$all_passed
