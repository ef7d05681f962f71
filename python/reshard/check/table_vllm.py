# SPDX-License-Identifier: Apache-2.0
"""Rows of the table for vLLM: its classes on a CPU, in this process, with one rank."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import torch
import transformers
import vllm

import reshard
import reshard.vllm
from reshard.check._report import Report
from reshard.check.engine_vllm import DirectClient, VllmWorker, running
from reshard.check.table import Row, places_of, said, tensors_of, varied
from reshard.learn.__main__ import checkpoint
from reshard.learn.models import tiny
from reshard.learn.models.stored import STORED, Stored

__all__ = ["ENGINE", "SIZES", "row"]

ENGINE = f"vLLM {vllm.__version__.split('+')[0]}"
#: Heads of 64, the least that vLLM's kernels for CPUs take.
SIZES = tiny.Sizes(heads=8, kv_heads=2, head_dim=64, hidden=256, intermediate=192, experts=4, expert_width=64)


def row(name: str, format: str, work: pathlib.Path) -> Row:
  """A class in a format. Errors: those of transformers and vLLM if they do not build it."""
  made = checkpoint(work / "made", name, SIZES, stored=_form(name))
  a, b = (_stored(varied(made, work / f"{seed}", seed), format, work) for seed in (1, 2))
  out = Row(name, format)

  def see(report: Report) -> list[str]:
    out.tensors = report.tensors
    return places_of(report)

  with running(a) as worker:
    out.experts = _experts(worker.model)
    worker.check(a).raise_for_difference()
    try:
      for folder in (b, a):
        worker.reload(tensors_of(folder).items())
        out.theirs += [place for place in see(worker.check(folder)) if place not in out.theirs]
    except Exception as error:
      out.reload = said(error)
  try:
    with running(a) as worker:
      out.ours = _updated(worker, a, b, see)
  except Exception as error:
    out.update = said(error)
  return out


def _updated(worker: VllmWorker, a: pathlib.Path, b: pathlib.Path, see: Callable[[Report], list[str]]) -> list[str]:
  """The places that differ after updates by reshard, to B and back to A."""
  found: list[str] = []
  layout = _layout(a)
  stored = tensors_of(a)
  held = {t.name: stored[t.name] for t in layout.local(0)}
  with reshard.vllm.Trainer(layout, held, client=DirectClient(worker)) as trainer:
    for folder in (b, a):
      stored = tensors_of(folder)
      for name, tensor in held.items():
        tensor.copy_(stored[name])
      trainer.update()
      found += [place for place in see(worker.check(folder)) if place not in found]
  return found


def _form(name: str) -> Stored | None:
  """The form of checkpoints that vLLM loads, if it is not that of transformers."""
  kind = getattr(transformers, name).config_class.model_type
  return next((form for form in STORED.get(kind, ()) if "vllm" in form.alone), None)


def _layout(folder: pathlib.Path) -> reshard.Layout:
  """A trainer's, that holds the tensors as they are stored."""
  return reshard.layout("hf", reshard.open_model(folder))


def _stored(folder: pathlib.Path, format: str, work: pathlib.Path) -> pathlib.Path:
  """The checkpoint in a format."""
  if format == "plain":
    return folder
  raise reshard.InvalidArgumentError(f"format '{format}': one of plain")


def _experts(model: torch.nn.Module) -> str:
  """The back end of the experts, as vLLM calls it."""
  for module in model.modules():
    method: Any = getattr(module, "quant_method", None)
    if hasattr(method, "moe_kernel"):
      backend = next((v for k, v in vars(method).items() if k.endswith("_backend") and v is not None), None)
      return str(getattr(backend, "name", type(method).__name__))
  return ""
