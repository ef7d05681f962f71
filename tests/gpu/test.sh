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
run bin/reshard_exec_tests --gtest_filter='*gpus*'
run bin/reshard_refit_tests --gtest_filter='*Device*:OnGpu/*'
run bin/reshard_cli_tests --gtest_filter='DeviceRun*'
# A process that has used the GPU cannot fork others that do: each of these tests has a process of its own.
for test in $(bin/reshard_exec_tests --gtest_list_tests --gtest_filter='SharedGpuMemory*:GpuPeers*' |
  awk '/^[A-Z].*\.$/ {suite = $1} /^  / {print suite $1}'); do
  run bin/reshard_exec_tests --gtest_filter="$test"
done
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    RC_PARAMS=max_success=10 run "$sanitizer" --tool "$tool" --error-exitcode 1 bin/reshard_cuda_tests
    RC_PARAMS=max_success=10 run "$sanitizer" --tool "$tool" --error-exitcode 1 bin/reshard_refit_tests \
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
