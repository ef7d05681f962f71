#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tour of `make demo`: a mixture-of-experts checkpoint, sharded as a trainer does, refitted live into an
# engine's layout, proved, and brought back. Everything it writes is under one folder, made anew each time.
#
#   tools/demo.sh <program> <folder>
set -euo pipefail
program=$1
out=$2
config=demo-moe
trainer=megatron:tp=2,pp=2,ep=4,etp=1,dp=2  # 8 ranks: experts over all four ranks of a stage
engine=vllm:tp=8  # the same 8 ranks, more than there are KV heads: those repeat

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'
else
  bold='' dim='' plain=''
fi
title() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
reshard() {
  printf '%s$ reshard %s%s\n' "$dim" "$*" "$plain"
  "$program" "$@"
}

SECONDS=0
rm -rf "$out"
mkdir -p "$out"

title '1. A checkpoint with the structure of Qwen3-30B-A3B, smaller'
reshard synth "$config" "$out/hf" --seed 1

title '2. Sharded as a trainer holds it: tensor, pipeline and expert parallel'
reshard convert "$out/hf" "$out/trainer" --from hf --to "$trainer"

title '3. The refit, live: from the trainer'"'"'s layout into the engine'"'"'s, three times'
reshard run --model "$out/trainer" --from "$trainer" --to "$engine" --repeat 3 --verify

title '4. The same at rest, and back'
reshard convert "$out/trainer" "$out/engine" --from "$trainer" --to "$engine"
reshard convert "$out/engine" "$out/back" --from "$engine" --to hf
reshard verify "$out/hf" "$out/back"

title '5. At full size nothing need be there: a plan for 1024 trainer ranks and 1024 engine ranks'
reshard plan --model qwen3-235b-a22b \
  --from megatron:tp=2,pp=4,first=23,last=23,ep=16,dp=128 --to vllm:tp=8,replicas=128,offset=1024

title "Shown in $SECONDS s"
cat <<TEXT
  - a refit between two layouts that cut, fuse, group and name the weights differently put every byte
    in its place: sources and destinations computed the same fingerprint of every tensor, each from
    its own pieces (step 3)
  - the checkpoint that went hf -> trainer -> engine -> hf came back the same, tensor by tensor (step 4)
  - planning reads no weights, and the plan of 2048 ranks leaves no sender busier than it must be (step 5)
The files are in $out; \`reshard inspect $out/engine\` shows what an engine's rank holds.
TEXT
