#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests of GPUs on GPU 0 of this machine, in a bundle of tools/gpu_build.sh: the slices of first_hour.sh that test.
# Says what it skips; their output is in FOLDER.
#
#   gpu-bundle/test.sh [FOLDER]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

. ./need_gpu.sh
need_gpu gpu-test
./first_hour.sh "${1:-gpu-test}" tests processes python sanitizers && echo "gpu-test: passed" && exit
echo "gpu-test: FAILED"
exit 1
