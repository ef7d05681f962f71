# SPDX-License-Identifier: Apache-2.0
# need_gpu <name>: refits once on GPU 0 and prints the report. Ends the script, with success, if there is no GPU.
need_gpu() {
  local report
  if report=$(bin/reshard run --model examples/configs/qwen3-4b.json --layers 1 --from megatron:tp=2 --to vllm:tp=2 \
    --device cuda --repeat 1 --verify 2>&1); then
    echo "$report"
    return
  fi
  echo "$report"
  case $report in
    *"no NVIDIA driver"* | *"no GPU"*) echo "$1: all skipped: there is no GPU" && exit 0 ;;
  esac
  exit 1
}
