#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Refits on GPU 0 of this machine against the driver's own copy, in a bundle of tools/gpu_build.sh.
#
#   gpu-bundle/bench.sh [--quick] [--out FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if ! why=$(bin/reshard run --model examples/configs/qwen3-4b.json --layers 1 --from megatron:tp=2 --to vllm:tp=2 \
  --device cuda --repeat 1 2>&1); then
  echo "$why"
  case $why in
    *"no NVIDIA driver"* | *"CUDA sees 0"*) echo "gpu-bench: all skipped: there is no GPU" && exit 0 ;;
  esac
  exit 1
fi
exec python3 bench/run.py --build . --only gpu "$@"
