#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints how long a new version of a checkpoint takes over a link of 1 Gb/s: whole, and as a delta that is made and applied.

  bench/delta_link.py FOLDER [build folder] [--rate 1gbit] [--rounds N]

Two hosts (network namespaces, so it needs root); the first serves files by HTTP, as an object storage does. The second fetches all
files of the new version, or the delta, which it applies to the version that it has. Both ways in turn, in each round; the result is
compared with the new version byte for byte. FOLDER must not exist.
"""

import argparse
import contextlib
import filecmp
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import hosts as hosts_module

PORT = 42151
# One value of so many is a unit greater: the shares of changes that bench/python/deltas.py found at 1e-6 and 1e-5.
ONE_IN = (68, 12)
FETCH = "import sys, shutil, urllib.request as u; shutil.copyfileobj(u.urlopen(sys.argv[1]), open(sys.argv[2], 'wb'), 1 << 20)"
NEXT_VALUE = bytes((value + 1) % 256 for value in range(256))


def train(before, after, one_in):
  """Copies a checkpoint of BF16 values; some become one unit greater."""
  shutil.copytree(before, after)
  for path in after.glob("*.safetensors"):
    data = bytearray(path.read_bytes())
    first = 8 + int.from_bytes(data[:8], "little")
    data[first :: 2 * one_in] = data[first :: 2 * one_in].translate(NEXT_VALUE)
    path.write_bytes(data)


def same(a, b):
  names = sorted(path.name for path in a.iterdir())
  return names == sorted(path.name for path in b.iterdir()) and not filecmp.cmpfiles(a, b, names, shallow=False)[1]


@contextlib.contextmanager
def served(hosts, folder):
  command = [*hosts.command(0), sys.executable, "-u", "-m", "http.server", str(PORT), "--directory", str(folder)]
  server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
  try:
    server.stdout.readline()  # it serves
    yield
  finally:
    server.terminate()
    server.wait()


def fetch(hosts, name, to):
  url = f"http://{hosts.address(0)}:{PORT}/{name}"
  subprocess.run([*hosts.command(1), sys.executable, "-c", FETCH, url, str(to)], check=True)


def whole(hosts, there, here):
  """Seconds until all files of the version are on the second host."""
  begin = time.perf_counter()
  here.mkdir()
  for path in sorted(there.iterdir()):
    fetch(hosts, f"{there.name}/{path.name}", here / path.name)
  return time.perf_counter() - begin


def by_delta(hosts, program, folder):
  """Seconds until the delta is made, until it is fetched, and until it is applied."""
  times = [time.perf_counter()]
  here = folder / "here"
  for command in (
    [*hosts.command(0), program, "delta", "make", folder / "old", folder / "new", folder / "delta"],
    None,
    [*hosts.command(1), program, "delta", "apply", folder / "old", here, folder / "restored"],
  ):
    if command is None:
      fetch(hosts, "delta", here)
    else:
      subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    times.append(time.perf_counter())
  return [b - a for a, b in zip(times, times[1:], strict=False)]


def clear(folder, *names):
  for name in names:
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def line_of(folder, program, one_in, rounds, rate):
  train(folder / "old", folder / "new", one_in)
  full, parts = [], []
  with hosts_module.hosts(2, rate) as hosts, served(hosts, folder):
    for _ in range(rounds):
      full.append(whole(hosts, folder / "new", folder / "restored"))
      assert same(folder / "new", folder / "restored")
      clear(folder, "restored")
      parts.append(by_delta(hosts, program, folder))
      assert same(folder / "new", folder / "restored")
      size = (folder / "delta").stat().st_size
      clear(folder, "restored", "delta", "here")
  bytes_of = sum(path.stat().st_size for path in (folder / "new").iterdir())
  clear(folder, "new")
  made, fetched, applied = (statistics.median(part) for part in zip(*parts, strict=True))
  total = statistics.median(sum(part) for part in parts)
  return (
    f"| {100 / one_in:.2f} % | {bytes_of / 1e9:.2f} GB | {statistics.median(full):.2f} s | {size / 1e6:.1f} MB, {100 * size / bytes_of:.2f} % "
    f"| {made:.2f} s | {fetched:.2f} s | {applied:.2f} s | {total:.2f} s |"
  )


def main():
  parser = argparse.ArgumentParser(description="Deltas over a slow link.")
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("build", nargs="?", type=pathlib.Path, default=pathlib.Path("build"))
  parser.add_argument("--rate", default="1gbit")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--model", default="qwen3-4b")
  parser.add_argument("--layers", type=int, default=6)
  options = parser.parse_args()
  if why := hosts_module.why_not():
    print(f"delta_link: not measured: {why}", file=sys.stderr)
    return 1
  program = str((options.build / "bin" / "reshard").resolve())
  options.folder.mkdir()
  old = options.folder / "old"
  subprocess.run([program, "synth", options.model, old, "--layers", str(options.layers)], check=True, stdout=subprocess.DEVNULL)
  print("| changed | checkpoint | whole | delta | make | fetch | apply | delta in all |")
  print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
  for one_in in ONE_IN:
    print(line_of(options.folder, program, one_in, options.rounds, options.rate), flush=True)
  return 0


if __name__ == "__main__":
  raise SystemExit(main())
