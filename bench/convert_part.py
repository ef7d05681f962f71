# SPDX-License-Identifier: Apache-2.0
"""Conversion of a synthetic checkpoint against `cp` of the same bytes, both until every byte is on the disk."""

import json
import os
import pathlib
import shutil
import statistics
import struct
import time

from machine import Watch
from programs import run, run_measured
from rows import BenchError, Row

TARGET, MOST_MB = 0.7, 2**30 / 1e6
MODEL, FULL_LAYERS, QUICK_LAYERS = "llama-3.1-8b", 14, 1
LAYOUT = "megatron:tp=4,pp=2"
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
  """Reads every byte, so that what fits is in the page cache."""
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
  """Compares two checkpoints byte for byte; the bytes compared. Raises where they differ."""
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

  def __init__(self, programs, scratch, layers):
    self.reshard = programs.path("reshard")
    self.config = programs.config(MODEL)
    self.scratch, self.layers = scratch, layers
    self.input, self.copy, self.output = (scratch / n for n in ("input", "copy", "output"))
    self.back = scratch / "back"

  def synthesise(self):
    self.clean()
    self.scratch.mkdir(parents=True)
    run([self.reshard, "synth", self.config, str(self.input), "--layers", str(self.layers)])
    with_each(self.input, os.fsync)

  def cp(self):
    remove(self.copy)
    # Blocks shared between files are no copy.
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
    """The output proved by fingerprints, and converted back to the bytes that it was made of."""
    run([self.reshard, "verify", str(self.input), str(self.output)])
    run([self.reshard, "convert", str(self.output), str(self.back), "--to", "hf"])
    remove(self.output)
    return same_tensors(self.input, self.back)

  def clean(self):
    remove(self.scratch)


def rate_row(kind, num_bytes, converts, copies, noise):
  seconds = [c[0] for c in converts]
  other = statistics.median(c[0] for c in copies)
  median = statistics.median(seconds)
  alone = statistics.median(c[1] for c in converts), statistics.median(c[1] for c in copies)
  what = f"{num_bytes / 1e9:.1f} GB of {MODEL}, hf to {LAYOUT}, {kind} page cache, until on the disk"
  return Row(
    "convert", what, "GB/s", num_bytes / median / 1e9, num_bytes / min(seconds) / 1e9,
    num_bytes / other / 1e9, "cp", other / median, TARGET, noise=noise,
    note=f"programs alone: {alone[0]:.1f} s, cp {alone[1]:.1f} s",
    samples={"convert": converts, "cp": copies},
  )  # fmt: skip


def memory_row(converts, noise):
  megabytes = [c[2] / 1e6 for c in converts]
  return Row(
    "convert", "peak resident memory, pages of mapped files included", "MB",
    statistics.median(megabytes), min(megabytes), target=MOST_MB, target_is_most=True,
    target_is_ratio=False, noise=noise, samples={"peak_rss_bytes": [c[2] for c in converts]},
  )  # fmt: skip


def measured_rows(job, rounds):
  job.synthesise()
  num_bytes = bytes_in(job.input)
  prepare = {"warm": make_warm, "cold": make_cold}
  everything = Watch()
  all_converts = []
  for number, kind in enumerate(prepare):
    watch, copies, converts = Watch(), [], []
    for i in range(rounds):
      prepare[kind](job.input)
      copies.append(job.cp())
      prepare[kind](job.input)
      last = number + 1 == len(prepare) and i + 1 == rounds
      converts.append(job.convert(keep=last))
    all_converts += converts
    yield rate_row(kind, num_bytes, converts, copies, watch.noise())
  row = memory_row(all_converts, everything.noise())
  row.note = f"{job.check() / 1e9:.1f} GB checked: converted back, byte for byte"
  yield row


def needed_bytes(layers):
  """Disk for input, output and a copy of either, with room to spare."""
  embeddings, layer = 2 * 128256 * 4096 * 2, 436e6
  return int(3.2 * (embeddings + layers * layer)) + 10**9


def measure(programs, quick, scratch):
  """Yields the rows of conversions."""
  layers = QUICK_LAYERS if quick else FULL_LAYERS
  what = f"{MODEL} with {layers} layers, hf to {LAYOUT}"
  if not programs.has("reshard"):
    yield Row("convert", what, skipped="the program reshard is not built")
    return
  folder = pathlib.Path(scratch)
  folder.mkdir(parents=True, exist_ok=True)
  free, needed = shutil.disk_usage(folder).free, needed_bytes(layers)
  if free < needed:
    reason = f"{folder} has {free / 1e9:.0f} GB free and {needed / 1e9:.0f} GB are needed"
    yield Row("convert", what, skipped=reason)
    return
  job = Conversion(programs, folder / "bench-convert", layers)
  try:
    yield from measured_rows(job, 1 if quick else 2)
  finally:
    job.clean()
