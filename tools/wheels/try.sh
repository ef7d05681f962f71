#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries the wheels in a bare Debian: nothing but Python is installed there.
#
#   tools/wheels/try.sh <folder> <dist> bullseye|bookworm|trixie [arm64]
#
# Imports the package, plans, refits between processes (tools/wheels/smoke.py), and gives the tour of `make demo` with the
# program of the wheel. The Python 3.9 of Debian 11 is too old for the package: there it is the program alone. arm64 runs
# under qemu. Needs root, debootstrap and, for arm64, qemu-user-static; <folder> keeps the systems, 0.4 GB each.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1"
folder=$(realpath "$1") dist=$(realpath "$2") suite=$3 arch=${4:-amd64}
root=$folder/$suite-$arch
machine=x86_64
[ "$arch" = amd64 ] || machine=aarch64

# Another processor's system is unpacked only: no package's script runs.
make_root() {
  local options=(--variant=minbase --include=python3,python3-venv)
  [ "$arch" = "$(dpkg --print-architecture)" ] || options+=(--foreign "--arch=$arch")
  rm -rf "$root.part"
  # What it mounts goes with it, also when it is interrupted.
  unshare --mount debootstrap "${options[@]}" "$suite" "$root.part" >"$root.log" 2>&1 || { tail -n 5 "$root.log" >&2; exit 1; }
  local package
  if [ "$arch" != "$(dpkg --print-architecture)" ]; then
    for package in "$root.part"/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$root.part"; done
  fi
  rm -f "$root.part"/var/cache/apt/archives/*.deb
  mv "$root.part" "$root"
}
[ -d "$root" ] || make_root

python=$(basename "$(realpath "$root/usr/bin/python3")")
case $python in
  python3.1[01]) tag=cp${python#python} && tag=${tag/./} && tag=$tag-$tag ;;
  *) tag=cp312-abi3 ;;
esac
wheel=$(echo "$dist"/reshard-*-"$tag"-*_"$machine".whl)
rm -rf "$root/try" && mkdir -p "$root/try/tools"
cp "$wheel" tools/demo.sh tools/wheels/smoke.py "$root/try/"
cat >"$root/try/run.sh" <<'TRY'
set -euo pipefail
cd /try
SECONDS=0
if python3 -c 'import sys; sys.exit(sys.version_info >= (3, 10))'; then
  python3 -m zipfile -e reshard-*.whl package
  program=/try/package/reshard/reshard
  chmod +x $program
  echo "Debian $(cat /etc/debian_version), $(python3 --version): the program alone"
else
  if [ -e /usr/bin/dpkg ] && python3 -c 'import ensurepip' 2>/dev/null; then
    python3 -m venv /try/env
    python3 - <<'INSTALL'
import platform, subprocess, sys, time, glob
before = time.monotonic()
subprocess.run(["/try/env/bin/python", "-m", "pip", "install", "--quiet", "--no-index", *glob.glob("reshard-*.whl")], check=True)
debian = open("/etc/debian_version").read().strip()
print(f"Debian {debian}, Python {platform.python_version()}: installed in {time.monotonic() - before:.1f} s", flush=True)
INSTALL
  fi
  program=/try/env/bin/reshard
  PATH=/try/env/bin:$PATH /try/env/bin/python smoke.py
fi
$program --version
$program synth demo-moe /try/moe
$program run --model /try/moe --from megatron:tp=2,ep=2,etp=1 --to vllm:tp=2 --transport shm --spawn --verify
[ -n "${NO_DEMO:-}" ] || bash demo.sh $program /try/demo | tail -n 12
echo "tried in $SECONDS s"
TRY
# qemu is registered for these processes alone: binfmt_misc belongs to their user namespace. It notes each page of address
# space that a program reserves, and reshard reserves 4 TiB where there is as much.
export root arch
exec unshare --map-root-user --mount --pid --fork bash -euo pipefail -c '
  if [ "$arch" = arm64 ]; then
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    magic="\\x7f\\x45\\x4c\\x46\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00"
    mask="\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff"
    printf ":reshard-arm64:M::%s:%s:/usr/bin/qemu-aarch64-static:F" "$magic" "$mask" >/proc/sys/fs/binfmt_misc/register
  fi
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  exec env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin LANG=C.UTF-8 QEMU_RESERVED_VA=32G NO_DEMO="${NO_DEMO:-}" chroot "$root" bash /try/run.sh </dev/null'
