#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Python environment of the tests, once for each content of their requirements file.
#
#   tools/python_env.sh <folder of the environment> <requirements.txt>
#
# What stands in requirements-alone.txt beside that file is installed without what it requires.
# A line "# without: a b" names packages that others bring along and that must not stay.
set -euo pipefail
venv=$1
requirements=$2
alone=${requirements%.txt}-alone.txt
[ -f "$alone" ] || alone=/dev/null
stamp=$venv/.requirements

[ -f "$requirements" ] || exit 0
want=$(cat "$requirements" "$alone" | sha256sum)
[ "$(cat "$stamp" 2>/dev/null)" != "$want" ] || exit 0

SECONDS=0
echo "python: making $venv for $requirements"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
rm -rf "$venv"
python3 -m venv "$venv"
# Python compiles a module when it is first imported (see the Makefile), and most never are.
pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@" >>"$log" 2>&1; }
if ! pip --requirement "$requirements" ||
  { [ -s "$alone" ] && ! pip --no-deps --requirement "$alone"; }; then
  tail -n 15 "$log" >&2
  echo "python: pip could not install $requirements" >&2
  exit 1
fi
read -ra without < <(sed -n 's/^# without: //p' "$requirements") || true
[ ${#without[@]} = 0 ] || "$venv/bin/python" -m pip uninstall --quiet --yes "${without[@]}"
# Written last, so that an interrupted run is made again.
echo "$want" >"$stamp"
echo "python: ready in $SECONDS s"
