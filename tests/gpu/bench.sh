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
python3 bench/run.py --build . --only gpu "$@"

# Beside torch, with the machine's own Python.
python=${PYTHON:-python3}
if why=$(PYTHONPATH=python "$python" -c 'import reshard, torch' 2>&1); then
  PYTHONPATH=python "$python" bench/python/gpu_peers.py
else
  echo "gpu-bench: torch's ways skipped: $(tail -n 1 <<<"$why")"
fi
