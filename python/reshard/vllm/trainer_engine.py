# SPDX-License-Identifier: Apache-2.0
"""`Trainer` behind vLLM's own interface for trainers, for code that uses its factory (0.26 on)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import reshard
import torch
from reshard.vllm import interface
from reshard.vllm.trainer import Trainer

__all__ = ["TrainerEngine", "TrainerInit"]


@dataclass
class TrainerInit(interface.TrainerInfoBase):  # type: ignore[misc]
  """What `WeightTransferTrainerFactory.trainer_init()` takes for the backend `reshard`.

  With `layout` and `tensors`, as for `Trainer`: this rank's tensors in any layout. Without them the
  `source` is used: rank 0 sends its whole tensors, as vLLM's dense backends do, and the other
  ranks only take part in gathering them.
  """

  backend: ClassVar[str] = interface.BACKEND

  layout: reshard.Layout | None = None
  tensors: Mapping[str, Any] | None = None
  size: int = 1
  options: dict[str, Any] = field(default_factory=dict)  # further arguments of Trainer


class TrainerEngine(interface.TrainerBase):  # type: ignore[misc]
  """A `Trainer` that `WeightTransferTrainerFactory` makes."""

  init_info_cls = TrainerInit

  def __init__(self, init_info: TrainerInit, client: Any, source: Any) -> None:
    is_sender = init_info.rank == 0
    self.client, self.source, self.is_sender = client, source, is_sender
    self._held: dict[str, torch.Tensor] | None = None
    layout, tensors = init_info.layout, init_info.tensors
    if layout is None:
      layout, tensors = self._whole(init_info.rank)
    self.trainer = Trainer(
      layout,
      tensors or {},
      client=client if is_sender else None,
      rank=init_info.rank,
      size=init_info.size,
      **init_info.options,
    )

  def _whole(self, rank: int) -> tuple[reshard.Layout, dict[str, torch.Tensor]]:
    """The layout of a WeightSource: rank 0 has everything."""
    if self.source is None:
      raise ValueError("TrainerInit without layout and tensors needs a source")
    self._held = {}
    shapes: dict[str, tuple[Sequence[int], object]] = {}
    for name, tensor in interface.tensors_of(self.source):
      if tensor is None:
        raise ValueError(f"the source has no '{name}' here: pass a layout and tensors instead")
      shapes[name] = (list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
      if rank == 0:
        self._held[name] = tensor.detach().to("cpu", copy=True).contiguous()
    model = reshard.Model.from_tensors("source", shapes)
    builder = reshard.LayoutBuilder("source", model)
    for name, (shape, dtype) in shapes.items():
      box = reshard.PlacedBox(name, [(0, n) for n in shape], [0] * len(shape))
      builder.add([0], name, list(shape), dtype, parts=[box])
    return builder.finish(), self._held

  @classmethod
  def trainer_init(cls, *args: Any, client: Any, source: Any = None, **named: Any) -> TrainerEngine:
    """Joins the engine. Called on every rank of the trainer.

    init_info  the last positional argument (0.26 has a config before it), or by name.
    """
    init_info: TrainerInit = named["init_info"] if "init_info" in named else args[-1]
    return cls(init_info, client, source)

  def send_weights(self, version: int | None = None) -> None:
    """Brings the engine to the present weights. Called on every rank of the trainer."""
    if self._held is not None:
      for name, tensor in interface.tensors_of(self.source):
        if name in self._held:
          self._held[name].copy_(tensor.detach())
    self.trainer.update(version)

  def shutdown(self) -> None:
    """Leaves the engine, which keeps its weights."""
    self.trainer.close()
