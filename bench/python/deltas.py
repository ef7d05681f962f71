# SPDX-License-Identifier: Apache-2.0
"""Deltas between real steps of an optimiser: their share of the checkpoint's bytes, plain and quantised.

    python bench/python/deltas.py FOLDER [--steps N] [--hidden N] [--layers N] [--warm-up N] [--json FILE]

A small Llama learns the bytes of this repository's documentation with torch's AdamW: BF16 weights of FP32 masters. After a
warm-up at 3e-4 it takes N steps at each learning rate; every version is a checkpoint, also in FP8 blocks and MXFP4 (the
quantiser runs before the comparison). For each format the chain of all deltas is applied to the anchor, and compared with
the last version byte for byte. The last row is two versions without a bit in common. FOLDER must not exist.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import statistics
import time
import zlib
from collections.abc import Iterator

import reshard
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

RATES = (1e-6, 1e-5)
WARM_UP_RATE = 3e-4
FORMATS = {"bf16": "", "fp8_block": "hf:quant=fp8_block", "mxfp4": "hf:quant=mxfp4"}
LINK = 1e9 / 8  # bytes per second
SAMPLED = 4  # versions on which XOR with zlib is tried
DOCS = pathlib.Path(__file__).parents[2] / "docs"


class Trainer:
  """A model whose BF16 weights are casts of FP32 masters, and batches in an order that depends on nothing else."""

  def __init__(self, hidden: int, layers: int):
    torch.manual_seed(1)
    heads = max(1, hidden // 64)
    config = LlamaConfig(
      hidden_size=hidden, intermediate_size=hidden * 3, num_hidden_layers=layers, num_attention_heads=heads,
      num_key_value_heads=max(1, heads // 2), vocab_size=256, tie_word_embeddings=False, torch_dtype="bfloat16",
    )  # fmt: skip
    self.model = LlamaForCausalLM(config).bfloat16()
    self.masters = {name: p.detach().float().clone().requires_grad_() for name, p in self.model.named_parameters()}
    self.adam = torch.optim.AdamW(self.masters.values(), lr=WARM_UP_RATE, weight_decay=0.01)
    text = b"".join(page.read_bytes() for page in sorted(DOCS.glob("*.md")))
    self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    self.batches = torch.Generator().manual_seed(2)

  def step(self, rate: float) -> float:
    """One step; the loss before it."""
    at = torch.randint(len(self.text) - 129, (4, 1), generator=self.batches) + torch.arange(129)
    tokens = self.text[at]
    loss = self.model(input_ids=tokens, labels=tokens).loss
    self.model.zero_grad()
    loss.backward()
    for name, p in self.model.named_parameters():
      assert p.grad is not None
      self.masters[name].grad = p.grad.float()
    torch.nn.utils.clip_grad_norm_(self.masters.values(), 1.0)
    for group in self.adam.param_groups:
      group["lr"] = rate
    self.adam.step()
    with torch.no_grad():
      for name, p in self.model.named_parameters():
        p.copy_(self.masters[name])
    return float(loss.detach())


def words_of(checkpoint: pathlib.Path) -> Iterator[torch.Tensor]:
  """The elements of each tensor, as integers of their size."""
  with safe_open(checkpoint / "model.safetensors", "pt") as file:
    for name in sorted(file.keys()):
      tensor = file.get_tensor(name)
      yield tensor.reshape(-1).view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def changed(before: pathlib.Path, after: pathlib.Path) -> float:
  """The share of elements that changed."""
  pairs = list(zip(words_of(before), words_of(after), strict=True))
  return sum(int((a != b).sum()) for a, b in pairs) / sum(a.numel() for a, _ in pairs)


def zlib_of_xor(before: pathlib.Path, after: pathlib.Path) -> float:
  """The bytes that zlib makes of the XOR of both versions, for each byte of a version."""
  small = whole = 0
  for a, b in zip(words_of(before), words_of(after), strict=True):
    xor = (a ^ b).numpy().tobytes()
    small += len(zlib.compress(xor, 6))
    whole += len(xor)
  return small / whole


def same_files(a: pathlib.Path, b: pathlib.Path) -> bool:
  names = sorted(path.name for path in a.iterdir())
  return names == sorted(path.name for path in b.iterdir()) and all((a / n).read_bytes() == (b / n).read_bytes() for n in names)


class Chain:
  """The deltas of one format at one learning rate."""

  def __init__(self, folder: pathlib.Path, rate: float, form: str):
    self.folder, self.rate, self.form = folder / f"{form}-{rate:g}", rate, form
    self.folder.mkdir()
    self.reports: list[reshard.delta.DeltaReport] = []
    self.changed: list[float] = []
    self.xor: list[float] = []

  def add(self, step: int, plain: pathlib.Path) -> None:
    """Takes the version after this step; deletes the one before unless it is the anchor."""
    version = self.folder / f"version-{step}"
    if FORMATS[self.form]:
      reshard.convert(plain, version, FORMATS[self.form], progress=False)
    else:
      shutil.copytree(plain, version)
    if step == 0:
      return
    last, after = self.folder / f"version-{step - 1}", self.delta(step - 1) if step > 1 else None
    self.reports.append(reshard.delta.make(last, version, self.delta(step), after=after, progress=False))
    self.changed.append(changed(last, version))
    if step <= SAMPLED:
      self.xor.append(zlib_of_xor(last, version))
    if step > 1:
      shutil.rmtree(last)

  def delta(self, step: int) -> pathlib.Path:
    return self.folder / f"{step}.delta"

  def row(self) -> dict[str, object]:
    steps = len(self.reports)
    begin = time.perf_counter()
    reshard.delta.apply(
      self.folder / "version-0", [self.delta(s) for s in range(1, steps + 1)], self.folder / "restored", progress=False
    )
    seconds = time.perf_counter() - begin
    one = reshard.delta.apply(self.folder / "version-0", self.delta(1), self.folder / "one", progress=False).seconds
    size = self.reports[0].result_bytes
    share = statistics.mean(r.share for r in self.reports)
    make = statistics.median(r.seconds for r in self.reports)
    return {
      "rate": self.rate, "format": self.form, "steps": steps, "bytes": size,
      "changed": statistics.mean(self.changed), "share": share, "largest_share": max(r.share for r in self.reports),
      "xor_zlib_share": statistics.mean(self.xor), "make_seconds": make, "apply_seconds": one, "apply_all_seconds": seconds,
      "full_link_seconds": size / LINK, "delta_link_seconds": share * size / LINK + make + one,
      "chain_is_equal": same_files(self.folder / "restored", self.folder / f"version-{steps}"),
    }  # fmt: skip


def everything_changes(plain: pathlib.Path, folder: pathlib.Path) -> dict[str, object]:
  """A version whose values have nothing to do with those before."""
  other = folder / "other"
  shutil.copytree(plain, other)
  path = other / "model.safetensors"
  data = path.read_bytes()
  head = 8 + int.from_bytes(data[:8], "little")
  generator = torch.Generator().manual_seed(3)
  noise = torch.randint(256, (len(data) - head,), generator=generator, dtype=torch.uint8)
  path.write_bytes(data[:head] + noise.numpy().tobytes())
  made = reshard.delta.make(plain, other, folder / "other.delta", progress=False)
  applied = reshard.delta.apply(plain, folder / "other.delta", folder / "other-restored", progress=False)
  return {
    "rate": None, "format": "bf16", "steps": 1, "bytes": made.result_bytes, "changed": changed(plain, other),
    "share": made.share, "largest_share": made.share, "xor_zlib_share": zlib_of_xor(plain, other),
    "make_seconds": made.seconds, "apply_seconds": applied.seconds, "apply_all_seconds": applied.seconds,
    "full_link_seconds": made.result_bytes / LINK,
    "delta_link_seconds": made.delta_bytes / LINK + made.seconds + applied.seconds,
    "chain_is_equal": same_files(other, folder / "other-restored"),
  }  # fmt: skip


def text_of(row: dict[str, object]) -> str:
  rate = "all values new" if row["rate"] is None else f"{row['rate']:g}"
  return (
    f"| {rate} | {row['format']} | {100 * row['changed']:.2f} % | {100 * row['share']:.2f} % | {100 * row['largest_share']:.2f} % "
    f"| {100 * row['xor_zlib_share']:.2f} % | {row['make_seconds']:.3f} s | {row['apply_seconds']:.3f} s | {row['apply_all_seconds']:.2f} s "
    f"| {row['full_link_seconds']:.2f} s | {row['delta_link_seconds']:.2f} s | {'yes' if row['chain_is_equal'] else 'NO'} |"
  )


def main() -> int:
  parser = argparse.ArgumentParser(description="Deltas between steps of an optimiser.")
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--steps", type=int, default=50)
  parser.add_argument("--hidden", type=int, default=512)
  parser.add_argument("--layers", type=int, default=4)
  parser.add_argument("--warm-up", type=int, default=60)
  parser.add_argument("--json", type=pathlib.Path)
  options = parser.parse_args()
  options.folder.mkdir()
  logging.disable_progress_bar()
  torch.set_num_threads(1)  # the same values on every machine with the same instructions
  plain = options.folder / "plain"
  trainer = Trainer(options.hidden, options.layers)
  losses = [trainer.step(WARM_UP_RATE) for _ in range(options.warm_up)]
  print(f"warm-up: loss {losses[0]:.3f} to {losses[-1]:.3f}\n")
  print("| learning rate | format | changed | share | largest | XOR, zlib 6 | make | apply | apply all | full, 1 Gb/s | delta, 1 Gb/s | equal |")
  print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
  rows = []
  for rate in RATES:
    chains = [Chain(options.folder, rate, form) for form in FORMATS]
    for step in range(options.steps + 1):
      if step > 0:
        trainer.step(rate)
      trainer.model.save_pretrained(plain)
      for chain in chains:
        chain.add(step, plain)
    for chain in chains:
      rows.append(chain.row())
      print(text_of(rows[-1]), flush=True)
  rows.append(everything_changes(plain, options.folder))
  print(text_of(rows[-1]))
  if options.json:
    options.json.write_text(json.dumps(rows, indent=2) + "\n")
  return 0 if all(row["chain_is_equal"] for row in rows) else 1


if __name__ == "__main__":
  raise SystemExit(main())
