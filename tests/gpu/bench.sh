#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Refits on GPU 0 of this machine against the driver's own copy, in a bundle of tools/gpu_build.sh.
#
#   gpu-bundle/bench.sh [--quick] [--out FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
. ./need_gpu.sh
need_gpu gpu-bench
exec python3 bench/run.py --build . --only gpu "$@"
