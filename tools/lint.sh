#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rooms and style, formatting, and clang-tidy; the last on files that differ from the main branch, or on all.
#
#   tools/lint.sh <build folder> <jobs> [all]
set -euo pipefail
build=$1
jobs=$2
which=${3:-changed}

sources() { git ls-files -co --exclude-standard -- '*.h' '*.cc'; }

python3 tools/check_layers.py
sources | xargs -r clang-format-19 --dry-run -Werror

# Headers are checked through the sources that include them; fuzz programs have another compiler's flags.
if [ "$which" = all ]; then
  mapfile -t files < <(sources | grep '\.cc$' | grep -v '^tests/fuzz/')
else
  base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
  mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"; git ls-files -o --exclude-standard; } |
    sort -u | grep '\.cc$' | grep -v '^tests/fuzz/')
fi
if [ ${#files[@]} -gt 0 ]; then
  SECONDS=0
  run-clang-tidy-19 -quiet -j "$jobs" -p "$build" "${files[@]/#/$PWD/}" 2>/dev/null
  echo "lint: clang-tidy on ${#files[@]} files in $SECONDS s"
fi
if command -v codespell >/dev/null; then git ls-files | xargs codespell; fi
echo "lint: nothing to say"
