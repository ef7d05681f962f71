#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a build folder if it is new or a setting changed, and builds one target in it.
#
#   tools/build.sh <folder> <jobs> <target> [-DNAME=VALUE ...]
set -euo pipefail
folder=$1
jobs=$2
target=$3
shift 3

is_set() {  # true when the folder's cache has this -DNAME=VALUE
  local pair=${1#-D}
  sed -n "s/^${pair%%=*}:[A-Z]*=//p" "$folder/CMakeCache.txt" 2>/dev/null | grep -qxF -- "${pair#*=}"
}

configured=true
[ -f "$folder/build.ninja" ] || configured=false
for setting in "$@"; do
  is_set "$setting" || configured=false
done
SECONDS=0
if ! $configured; then
  cmake -G Ninja -S . -B "$folder" --log-level=WARNING "$@" >/dev/null
  echo "configure: $folder in $SECONDS s"
fi

SECONDS=0
quiet=(--quiet)
[ ! -t 1 ] || quiet=()
ninja -C "$folder" -j "$jobs" "${quiet[@]}" "$target"
echo "build: $folder $target in $SECONDS s"
