# SPDX-License-Identifier: Apache-2.0
"""Rows of the table for vLLM: its classes on a CPU, in this process, with one rank."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reshard.tracing.vision import import_torchvision

import_torchvision()  # before vLLM and transformers ask whether it is there

import torch  # noqa: E402
import transformers  # noqa: E402
import vllm  # noqa: E402

import reshard  # noqa: E402
import reshard.vllm  # noqa: E402
from reshard.check._report import Report  # noqa: E402
from reshard.check.engine_vllm import DirectClient, VllmWorker, running  # noqa: E402
from reshard.check.table import Row, places_of, said, tensors_of, varied  # noqa: E402
from reshard.learn.__main__ import checkpoint  # noqa: E402
from reshard.learn.models import tiny  # noqa: E402
from reshard.learn.models.stored import STORED, Stored  # noqa: E402

__all__ = ["ENGINE", "SIZES", "row", "updated"]

ENGINE = f"vLLM {vllm.__version__.split('+')[0]}"
#: Heads of 64, the least that vLLM's kernels for CPUs take.
SIZES = tiny.Sizes(heads=8, kv_heads=2, head_dim=64, hidden=256, intermediate=192, experts=4, expert_width=64)


def row(name: str, format: str, work: pathlib.Path) -> Row:
  """A class in a format. Errors: those of transformers and vLLM if they do not build it."""
  made = checkpoint(work / "made", name, SIZES, stored=_form(name))
  values = [varied(made, work / f"{seed}", seed) for seed in (1, 2)]
  a, b = (_stored(folder, format, work) for folder in values)
  out = Row(name, format)

  def see(report: Report) -> list[str]:
    out.shared = len(report.shared)
    out.tensors = report.tensors - out.shared
    out.unloaded += [place for place in places_of(report, unloaded=True) if place not in out.unloaded]
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
      out.ours = _updated(worker, dict(zip(values, (a, b), strict=True)), see)
  except Exception as error:
    out.update = said(error)
  return out


def updated(before: pathlib.Path, after: pathlib.Path, reload: bool = False) -> Report:
  """Starts a worker on a checkpoint, updates it to another, and compares it with a fresh load of that.

  reload  by vLLM's own reload, without reshard
  """
  with running(before) as worker:
    if reload:
      worker.reload(tensors_of(after).items())
    else:
      _refit(worker, (after,), lambda _: None)
    return worker.check(after)


def _updated(worker: VllmWorker, stored: Mapping[pathlib.Path, pathlib.Path], see: Callable[[Report], list[str]]) -> list[str]:
  """The places that differ after updates by reshard, from A to B and back. `stored`: by the folders of values, as the engine has
  them."""
  found: list[str] = []
  a, b = stored
  _refit(worker, (b, a), lambda folder: found.extend(place for place in see(worker.check(stored[folder])) if place not in found))
  return found


def _refit(worker: VllmWorker, folders: Sequence[pathlib.Path], then: Callable[[pathlib.Path], None]) -> None:
  """Updates a worker by a trainer that holds one checkpoint after the other; `then` is called behind each update."""
  layout = reshard.layout("hf", reshard.open_model(folders[0]))
  stored = tensors_of(folders[0])
  held = {t.name: stored[t.name] for t in layout.local(0)}
  with reshard.vllm.Trainer(layout, held, client=DirectClient(worker)) as trainer:
    for folder in folders:
      stored = tensors_of(folder)
      for name, tensor in held.items():
        tensor.copy_(stored[name])
      trainer.update()
      then(folder)


def _form(name: str) -> Stored | None:
  """The form of checkpoints that vLLM loads, if it is not that of transformers."""
  kind = getattr(transformers, name).config_class.model_type
  return next((form for form in STORED.get(kind, ()) if "vllm" in form.alone), None)


def _stored(folder: pathlib.Path, format: str, work: pathlib.Path) -> pathlib.Path:
  """The checkpoint in a format."""
  if format == "plain":
    return folder
  out = work / f"{folder.name}-{format}"
  reshard.convert(folder, out, f"hf:quant={format},quant_method=compressed-tensors")
  return out


def _experts(model: torch.nn.Module) -> str:
  """The back end of the experts, as vLLM calls it."""
  for module in model.modules():
    method: Any = getattr(module, "quant_method", None)
    if hasattr(method, "moe_kernel"):
      backend = next((v for k, v in vars(method).items() if k.endswith("_backend") and v is not None), None)
      return str(getattr(backend, "name", type(method).__name__))
  return ""
