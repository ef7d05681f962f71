# SPDX-License-Identifier: Apache-2.0
"""Conversion of a synthetic checkpoint against `cp` of the same bytes.

On disk, both are timed until every byte is on the disk, with a warm and with a cold page cache. In memory (tmpfs), no
disk hides the cost of the program.
"""

import json
import os
import pathlib
import shutil
import statistics
import struct
import time

from machine import Watch, available_memory
from programs import run, run_measured
from rows import BenchError, Row

TARGET, MOST_MB = 0.7, 2**30 / 1e6
MODEL = "llama-3.1-8b"
# Layers and vocabulary: 8 GB, and 1 GB for a quick run.
FULL, QUICK = (14, 128256), (2, 16384)
LAYOUT = "megatron:tp=4,pp=2"
MEMORY_FOLDER = pathlib.Path("/dev/shm")
COPY_BUFFER = 16 << 20


def files_of(folder):
  return sorted(p for p in folder.rglob("*") if p.is_file())


def bytes_in(folder):
  return sum(p.stat().st_size for p in files_of(folder))


def with_each(folder, action):
  """Calls action(descriptor) for each file of a folder."""
  for path in files_of(folder):
    descriptor = os.open(path, os.O_RDONLY)
    try:
      action(descriptor)
    finally:
      os.close(descriptor)


def make_cold(folder):
  """Drops a folder's files from the page cache; they must be on the disk."""
  with_each(folder, os.fsync)
  with_each(folder, lambda d: os.posix_fadvise(d, 0, 0, os.POSIX_FADV_DONTNEED))


def make_warm(folder):
  """Reads every byte into the page cache, as far as it fits."""
  for path in files_of(folder):
    with path.open("rb", buffering=0) as file:
      while file.read(COPY_BUFFER):
        pass


def timed(argv, output):
  """(seconds until the output is on the disk, seconds of the program, its peak resident bytes)."""
  begin = time.monotonic()
  seconds, peak, _ = run_measured(argv)
  with_each(output, os.fsync)
  return time.monotonic() - begin, seconds, peak


def tensors_of(folder):
  """name -> (path, begin, end) of every tensor of the safetensors files in a folder."""
  found = {}
  for path in sorted(folder.glob("*.safetensors")):
    with path.open("rb") as file:
      (length,) = struct.unpack("<Q", file.read(8))
      header = json.loads(file.read(length))
    for name, entry in header.items():
      if name != "__metadata__":
        begin, end = entry["data_offsets"]
        found[name] = (path, 8 + length + begin, 8 + length + end)
  return found


def same_tensors(a, b):
  """Compares two checkpoints byte for byte. Returns the bytes compared; raises if they differ."""
  left, right = tensors_of(a), tensors_of(b)
  if set(left) != set(right):
    raise BenchError(f"{a} and {b} have different tensors: {sorted(set(left) ^ set(right))[:3]}")
  compared = 0
  for name, (path, begin, end) in left.items():
    other, first, last = right[name]
    if end - begin != last - first:
      raise BenchError(f"{name}: {end - begin} bytes in {path} but {last - first} in {other}")
    with path.open("rb") as x, other.open("rb") as y:
      x.seek(begin)
      y.seek(first)
      left_over = end - begin
      while left_over > 0:
        size = min(COPY_BUFFER, left_over)
        if x.read(size) != y.read(size):
          raise BenchError(f"{name}: {path} and {other} differ")
        left_over -= size
    compared += end - begin
  return compared


def remove(folder):
  shutil.rmtree(folder, ignore_errors=True)


class Conversion:
  """The folders of one measurement; everything in `scratch` is removed by `clean`."""

  def __init__(self, programs, scratch, size):
    self.reshard = programs.path("reshard")
    self.model = json.loads(pathlib.Path(programs.config(MODEL)).read_text())
    self.model["num_hidden_layers"], self.model["vocab_size"] = size
    self.scratch = scratch
    self.input, self.copy, self.output = (scratch / n for n in ("input", "copy", "output"))
    self.back = scratch / "back"

  def synthesise(self):
    self.clean()
    self.scratch.mkdir(parents=True)
    config = self.scratch / "config.json"
    config.write_text(json.dumps(self.model))
    run([self.reshard, "synth", str(config), str(self.input)])
    with_each(self.input, os.fsync)

  def cp(self):
    remove(self.copy)
    # Blocks shared between files would not be a copy.
    result = timed(["cp", "-r", "--reflink=never", str(self.input), str(self.copy)], self.copy)
    remove(self.copy)
    return result

  def convert(self, keep):
    remove(self.output)
    argv = [self.reshard, "convert", str(self.input), str(self.output), "--to", LAYOUT]
    result = timed(argv, self.output)
    if not keep:
      remove(self.output)
    return result

  def check(self):
    """Verifies the output by fingerprints, converts it back, and compares the bytes."""
    run([self.reshard, "verify", str(self.input), str(self.output)])
    run([self.reshard, "convert", str(self.output), str(self.back), "--to", "hf"])
    remove(self.output)
    return same_tensors(self.input, self.back)

  def clean(self):
    remove(self.scratch)


def rate_row(place, num_bytes, converts, copies, noise):
  seconds = [c[0] for c in converts]
  other = statistics.median(c[0] for c in copies)
  median = statistics.median(seconds)
  alone = statistics.median(c[1] for c in converts), statistics.median(c[1] for c in copies)
  return Row(
    "convert", f"{num_bytes / 1e9:.1f} GB of {MODEL}, hf to {LAYOUT}, {place}", "GB/s",
    num_bytes / median / 1e9, num_bytes / min(seconds) / 1e9, num_bytes / other / 1e9, "cp",
    other / median, TARGET, noise=noise,
    note=f"programs alone: {alone[0]:.2f} s, cp {alone[1]:.2f} s",
    samples={"convert": converts, "cp": copies},
  )  # fmt: skip


def memory_row(converts, noise, checked):
  megabytes = [c[2] / 1e6 for c in converts]
  return Row(
    "convert", "the same, peak resident memory, pages of mapped files included", "MB",
    statistics.median(megabytes), min(megabytes), target=MOST_MB, target_is_most=True,
    target_is_ratio=False, noise=noise, note=f"{checked / 1e9:.1f} GB compared byte for byte",
    samples={"peak_rss_bytes": [c[2] for c in converts]},
  )  # fmt: skip


def measured_rows(job, prepare, rounds):
  """`prepare`: for each place, what to do to the input before each copy and each conversion."""
  job.synthesise()
  num_bytes = bytes_in(job.input)
  everything = Watch()
  all_converts = []
  for number, (place, make_ready) in enumerate(prepare.items()):
    watch, copies, converts = Watch(), [], []
    for i in range(rounds):
      make_ready(job.input)
      copies.append(job.cp())
      make_ready(job.input)
      last = number + 1 == len(prepare) and i + 1 == rounds
      converts.append(job.convert(keep=last))
    all_converts += converts
    yield rate_row(place, num_bytes, converts, copies, watch.noise())
  noise = everything.noise()
  yield memory_row(all_converts, noise, job.check())


def needed_bytes(size):
  """The space for input, output, a copy of each, and a margin."""
  layers, vocabulary = size
  return int(3.2 * (2 * vocabulary * 4096 * 2 + layers * 436e6)) + 10**9


def rows_in(programs, folder, size, prepare, rounds):
  """The rows of one folder, or one row that says why there are none. Leaves the folder empty."""
  what = f"{MODEL} with {size[0]} layers, hf to {LAYOUT}, {next(iter(prepare))}"
  free, needed = shutil.disk_usage(folder).free, needed_bytes(size)
  if free < needed:
    reason = f"{folder} has {free / 1e9:.0f} GB free and {needed / 1e9:.0f} GB are needed"
    yield Row("convert", what, skipped=reason)
    return
  job = Conversion(programs, folder / f"reshard-bench-{os.getpid()}", size)
  try:
    yield from measured_rows(job, prepare, rounds)
  finally:
    job.clean()


def measure(programs, quick, scratch):
  """Yields the rows of conversions."""
  if not programs.has("reshard"):
    yield Row("convert", f"{MODEL}, hf to {LAYOUT}", skipped="the program reshard is not built")
    return
  scratch.mkdir(parents=True, exist_ok=True)
  on_disk = {"warm page cache, until on the disk": make_warm}
  if not quick:
    on_disk["cold page cache, until on the disk"] = make_cold
  yield from rows_in(programs, scratch, QUICK if quick else FULL, on_disk, 1 if quick else 2)
  if MEMORY_FOLDER.is_dir() and available_memory() > needed_bytes(QUICK):
    in_memory = {"in memory (tmpfs)": make_warm}
    yield from rows_in(programs, MEMORY_FOLDER, QUICK, in_memory, 3 if quick else 7)
