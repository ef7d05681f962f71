#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests of GPUs on GPU 0 of this machine, in a bundle of tools/gpu_build.sh. Says what it skips.
#
#   gpu-bundle/test.sh
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

. ./need_gpu.sh
need_gpu gpu-test

failed=0
run() { "$@" --gtest_brief=1 || failed=1; }
export RESHARD_TEST_GPU=0
run bin/reshard_cuda_tests
run bin/reshard_exec_tests --gtest_filter='*gpus*-Shm*'
run bin/reshard_refit_tests --gtest_filter='*Device*:OnGpu/*'
run bin/reshard_cli_tests --gtest_filter='DeviceRun*'
# A process that has used the GPU cannot fork others that do: each of these tests has a process of its own.
for test in $(bin/reshard_exec_tests --gtest_list_tests --gtest_filter='SharedGpuMemory*:GpuPeers*:Shm*gpus*' |
  awk '/^[A-Z].*\.$/ {suite = $1} /^  / {print suite $1}'); do
  run bin/reshard_exec_tests --gtest_filter="$test"
done
# Two processes that share GPU 0, by messages and by each other's memory; and as many ranks of NCCL as there are GPUs.
refit() {
  bin/reshard run --model demo-moe "$@" --spawn --verify || failed=1
}
refit --device cuda:0 --from megatron:ep=2 --to vllm:tp=2 --transport shm
refit --device cuda:0 --from megatron:ep=2 --to vllm:tp=2 --transport shm --path message --check-fingerprints
if bin/reshard transports | grep -q '^nccl *yes'; then
  if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -gt 1 ]; then
    refit --device cuda --from megatron:ep=2 --to vllm:tp=2 --transport nccl --check-fingerprints
    refit --device cuda --from megatron:ep=2 --to vllm:tp=2,quant=mxfp8 --transport nccl
  else
    refit --device cuda --from megatron:tp=1 --to vllm:tp=1 --transport nccl
    echo "gpu-test: NCCL between ranks skipped: there is one GPU"
  fi
else
  echo "gpu-test: NCCL skipped: $(bin/reshard transports | grep '^nccl')"
fi
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    RC_PARAMS=max_success=10 run "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 1 bin/reshard_cuda_tests
    RC_PARAMS=max_success=10 run "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 1 bin/reshard_refit_tests \
      --gtest_filter='*Device*'
  done
else
  echo "gpu-test: memcheck and racecheck skipped: there is no compute-sanitizer"
fi

# With the machine's own Python and torch.
python=${PYTHON:-python3}
skipped=
if [ ! -d python ]; then
  skipped="this bundle was built without it"
elif ! why=$("$python" -c 'import pytest, torch; assert torch.cuda.is_available(), "torch sees no GPU"' 2>&1); then
  skipped=$(tail -n 1 <<<"$why")
elif ! why=$(PYTHONPATH=python "$python" -c 'import reshard' 2>&1); then
  skipped=$(tail -n 1 <<<"$why")
fi
if [ -n "$skipped" ]; then
  echo "gpu-test: the Python package skipped: $skipped"
else
  PYTHONPATH=python "$python" -m pytest -q --no-header -p no:cacheprovider -rs python/tests/gpu_*cases.py || failed=1
fi
[ $failed -eq 0 ] && echo "gpu-test: passed" || echo "gpu-test: FAILED"
exit $failed
