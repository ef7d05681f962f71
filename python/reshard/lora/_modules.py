# SPDX-License-Identifier: Apache-2.0
"""Modules of Megatron-Core with adapters of Megatron-Bridge, in PEFT's names.

Megatron-Bridge adapts a fused module as one: its A serves all tensors that are fused there, and the rows of its B lie
as those of the weight do. In PEFT's names each of these tensors has an A, all in the same memory, and its rows of B.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import reshard
from reshard import _core, _manifest as manifest
from reshard._arguments import checked
from reshard.live._bridge import composed, text_of
from reshard.live._megatron import full_tensors, told
from reshard.live._modules import Factor, chunks_of, held_by, module_tensors, plain, values_of
from reshard.live._parts import Held
from reshard.live._ranks import FullTensors, Ranks, unpacked

if TYPE_CHECKING:
  import torch
  from torch.distributed import ProcessGroup as TorchGroup

__all__ = ["Adapted", "of_modules"]

# In names of local tensors: "linear_qkv.adapter.linear_in.weight@k_proj" is a factor that several tensors share, as
# that of one of them.
_OF = "@"
# The tensors that Megatron-Bridge's CanonicalLoRA adapts one by one.
_PARTS = {
  "adapter_q": "q_proj", "adapter_k": "k_proj", "adapter_v": "v_proj", "adapter_gate": "gate_proj", "adapter_up": "up_proj",
}  # fmt: skip


@dataclass(frozen=True)
class Adapted:
  """What ranks hold of modules with an adapter: weights in the names of the model, factors in those of PEFT."""

  layout: reshard.Layout  # of all ranks
  config: dict[str, Any]  # as in PEFT's adapter_config.json: `lora_alpha`, `r`, `target_modules`, patterns
  modules: Any
  rank: int

  def tensors(self) -> dict[str, torch.Tensor]:
    """This rank's tensors, by the names of the layout. The A of a fused module is there once for each tensor fused."""
    if self.rank not in self.layout.ranks:
      return {}
    held = module_tensors(self.modules)
    return {t.name: held[t.name.partition(_OF)[0]] for t in self.layout.local(self.rank)}


@checked
def of_modules(
  modules: Any,
  model: reshard.Model,
  *,
  group: TorchGroup | reshard.ProcessGroup | None = None,
  adapter: str = "default",
  bridge: Any = None,
  offset: int = 0,
  timeout: float = 60.0,
) -> Adapted:
  """What ranks hold of Megatron-Core's modules that Megatron-Bridge has given a LoRA adapter.

      held = reshard.lora.of_modules(modules, model)  # on every rank of the group
      trainer = reshard.vllm.Trainer(held.layout, held.tensors(), merge={"default": held.config}, ...)

  modules  this rank's, as for reshard.of_modules()
  model    whose tensors these are made of, in the names of its checkpoint
  group    as for reshard.of_modules(); all ranks of it call
  adapter  what it is called in the layout: "model.layers.0.self_attn.q_proj.lora_A.default.weight"
  bridge   as for reshard.of_modules()
  offset   added to every rank
  timeout  seconds until DeadlineError, if `group` is a reshard.ProcessGroup

  LoRA and CanonicalLoRA of linear layers, routers and experts. An adapter that a rank's experts share is that of each of
  them. Raises UnsupportedError for adapters that are more than A and B (DoRA, activations), and for those whose experts
  are stacked in one tensor; InvalidArgumentError for modules without an adapter, and as reshard.of_modules(). An error
  on one rank is raised on all.
  """
  import torch.distributed as dist

  said = told(group, modules, lambda: describe(modules, model, bridge), "lora.of_modules", timeout)
  rank = group.rank if isinstance(group, reshard.ProcessGroup) else dist.get_rank(group)
  layout, config = of_descriptions(said, model, adapter, offset)
  return Adapted(layout, config, modules, rank + offset)


def describe(modules: Any, model: reshard.Model | None = None, bridge: Any = None) -> dict[str, Any]:
  """What one rank holds, as JSON."""
  held = [Held(h.name, plain(h.whole), h.dtype, h.shape, h.runs) for h in held_by(modules)]
  wholes = [one.whole for one in held]
  held = [copy for one in held for copy in _of_experts(one, wholes)]
  owners = {
    f"{chunk.front}{name}.linear_in.weight": part
    for chunk in chunks_of(modules)
    for name, part in chunk.module.named_modules()
    if ".adapter" in name
  }
  alphas = {
    one.whole: _alpha_of(one.name, owners[parameter])
    for one in held
    if (parameter := one.name.partition(_OF)[0]) in owners
  }
  said = {"held": [one.pack() for one in held], "keys": values_of(modules), "alphas": alphas}
  if bridge is not None and model is not None:
    said["full"] = composed(bridge, modules, [one for one in held if Factor.of(one.whole) is None], model)
  return said


def _of_experts(held: Held, wholes: Iterable[str]) -> list[Held]:
  """A tensor; of a factor that a rank's experts share, one for each of them. `wholes`: what the rank holds."""
  if ".adapter." not in held.name:
    return [held]
  whole = held.whole.partition("[")[0]
  factor = Factor.of(whole)
  if factor is None:
    raise reshard.UnsupportedError(f"'{held.name}' is part of an adapter that is more than A and B: merge it before")
  experts = [found[1] for other in wholes if (found := re.fullmatch(rf"{re.escape(factor.module)}\.weight([0-9]+)", other))]
  if not experts:
    return [held]
  return [Held(f"{held.name}{_OF}{n}", whole + n, held.dtype, held.shape, held.runs) for n in experts]


def _alpha_of(name: str, adapter: Any) -> float:
  activation = getattr(adapter, "activation", None)
  if activation is not None and type(activation).__name__ != "Identity":
    raise reshard.UnsupportedError(
      f"'{name}': {type(activation).__name__} between A and B makes of them more than a change of the weight"
    )
  return float(adapter.alpha)


def of_descriptions(
  said: Iterable[Mapping[str, Any] | None], model: reshard.Model, adapter: str = "default", offset: int = 0
) -> tuple[reshard.Layout, dict[str, Any]]:
  """The layout of ranks that described themselves, and the adapter's config; None: a rank that holds nothing."""
  answers = list(said)
  ranks = unpacked([None if a is None else a["held"] for a in answers], offset)
  alphas: dict[str, float] = {}
  for name, alpha in (pair for a in answers if a is not None for pair in a["alphas"].items()):
    if alphas.setdefault(name, alpha) != alpha:
      raise reshard.InvalidArgumentError(f"alpha of '{name}' is {alphas[name]:g} on some ranks, {alpha:g} on others")
  fulls, hint = full_tensors(_weights_of(ranks), [a for a in answers if a is not None], model)
  factors = _Factors(model, fulls, ranks, adapter, alphas)
  return factors.layout(hint), factors.config()


def _weights_of(ranks: Ranks) -> Ranks:
  return {rank: [held for held in here if Factor.of(held.whole) is None] for rank, here in ranks.items()}


class _Factors:
  """The full tensors of an adapter: which tensors of PEFT each is made of."""

  def __init__(
    self,
    model: reshard.Model,
    fulls: Sequence[reshard.Layout],
    ranks: Ranks,
    adapter: str,
    alphas: Mapping[str, float],
  ) -> None:
    self._fulls, self._ranks, self._adapter, self._alphas = fulls, ranks, adapter, alphas
    self._table = manifest.table_of(model)
    self._entries: list[dict[str, Any]] = []  # of the factors
    self._weights = {local.name: local for full in reversed(fulls) for local in full.local(full.ranks[0])}
    self._numbers = {str(entry[0]): number for number, entry in enumerate(self._table)}
    #: The names of a full tensor's copies, where PEFT has several: one for each tensor that is fused.
    self._copies: dict[str, list[str]] = {}
    self._scales: dict[str, tuple[float, int]] = {}  # {module of the model: (alpha, rank)}
    for factor, held in self._found():
      self._add(factor, held)

  def layout(self, hint: str) -> reshard.Layout:
    """The layout of all ranks. `hint`: what may be wrong with a tensor that the model lacks."""
    model = manifest.model_of(self._table, "adapted")
    fulls = [_core.explicit_layout(text_of(full), model) for full in self._fulls]
    fulls.append(manifest.build("adapter", model, {0: self._entries}, omit=True))
    ranks = {rank: [copy for held in here for copy in self._copied(held)] for rank, here in self._ranks.items()}
    return FullTensors(model, fulls).layout("megatron", ranks, hint)

  def config(self) -> dict[str, Any]:
    ranks = [rank for _, rank in self._scales.values()]
    alphas = [alpha for alpha, _ in self._scales.values()]
    r, alpha = max(ranks), max(alphas)
    return {
      "peft_type": "LORA",
      "task_type": "CAUSAL_LM",
      "r": r,
      "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
      "bias": "none",
      "target_modules": sorted({module.rpartition(".")[2] for module in self._scales}),
      "rank_pattern": {re.escape(m): rank for m, (_, rank) in self._scales.items() if rank != r},
      "alpha_pattern": {re.escape(m): a for m, (a, _) in self._scales.items() if a != alpha},
    }

  def _found(self) -> list[tuple[Factor, Held]]:
    """Each factor, with one holder. Raises InvalidArgumentError if there is none, or one without its other."""
    every = {held.whole: held for _, here in sorted(self._ranks.items()) for held in here}
    found = {whole: (factor, held) for whole, held in every.items() if (factor := Factor.of(whole)) is not None}
    if not found:
      raise reshard.InvalidArgumentError("lora.of_modules: no module has an adapter; reshard.of_modules() takes these")
    for name in found:
      other = _other(name)
      if other not in found:
        raise reshard.InvalidArgumentError(f"'{name}' has no '{other}' on any rank")
    return list(found.values())

  def _add(self, factor: Factor, held: Held) -> None:
    local = self._weights.get(factor.weight)
    if local is None or len(held.shape) != 2:
      raise reshard.UnsupportedError(
        f"'{held.whole}' {list(held.shape)} is no factor of a single weight of the model: merge the adapter before"
      )
    weight = manifest.describe_tensor(local, self._numbers, local.shape)
    parts = self._parts_of(factor, weight, held)
    if factor.kind == "B":
      self._entries.append(_entry(held, [self._rows(part, held, factor) for part in parts], bool(weight["padded"])))
      return
    names = [str(self._table[part["tensor"]][0]) for part in parts]
    tensors = list(dict.fromkeys(names))
    self._copies[held.whole] = [
      held.whole if len(tensors) == 1 else f"{held.whole}{_OF}{_module_of(t).rpartition('.')[2]}" for t in tensors
    ]
    for tensor, name in zip(tensors, self._copies[held.whole], strict=True):
      self._scales[_module_of(tensor)] = (self._alphas[held.whole], held.shape[0])
      number = self._number(tensor, "A", held.dtype, held.shape)
      box = [[0, n] for n in held.shape]
      part = {"tensor": number, "box": box, "at": [0, 0], "dims": [0, 1], "gaps": [0, 0]}
      self._entries.append({**_entry(held, [part], False), "name": name})

  def _parts_of(self, factor: Factor, weight: dict[str, Any], held: Held) -> list[dict[str, Any]]:
    """The parts of the weight that this factor changes."""
    parts: list[dict[str, Any]] = weight["parts"]
    rows, columns = (list(weight["shape"]) + [0, 0])[:2]
    for part in parts:
      whole = [0, columns]
      if len(part["box"]) != 2 or part["box"][1] != whole or part["dims"] != [0, 1] or part["gaps"][1] != 0:
        raise reshard.UnsupportedError(f"'{held.whole}': '{weight['name']}' is not made of rows of single weights")
    if factor.part:
      end = f".{_PARTS.get(factor.part, factor.part)}.weight"
      parts = [part for part in parts if str(self._table[part["tensor"]][0]).endswith(end)]
      rows = sum(part["box"][0][1] - part["box"][0][0] for part in parts)
    if not parts or held.shape[0 if factor.kind == "B" else 1] != (rows if factor.kind == "B" else columns):
      raise reshard.InvalidArgumentError(
        f"'{held.whole}' {list(held.shape)} does not fit '{weight['name']}' {list(weight['shape'])}"
      )
    return parts

  def _rows(self, part: dict[str, Any], held: Held, factor: Factor) -> dict[str, Any]:
    """The rows of B that change this part of the weight."""
    tensor = str(self._table[part["tensor"]][0])
    number = self._number(tensor, "B", held.dtype, (int(self._table[part["tensor"]][2][0]), held.shape[1]))
    placed = {**copy.deepcopy(part), "tensor": number}
    placed["box"][1] = [0, held.shape[1]]
    if factor.part:  # an adapter of its own has its rows in the order of the tensor
      placed["at"], placed["gaps"] = [part["box"][0][0], 0], [0, 0]
    return placed

  def _number(self, tensor: str, kind: str, dtype: str, shape: tuple[int, ...]) -> int:
    """The number in the table of a factor of a tensor of the model; adds it."""
    name = f"{_module_of(tensor)}.lora_{kind}.{self._adapter}.weight"
    if name not in self._numbers:
      self._numbers[name] = len(self._table)
      self._table.append([name, dtype.lower(), list(shape), list(shape)])
    return self._numbers[name]

  def _copied(self, held: Held) -> list[Held]:
    names = self._copies.get(held.whole, [held.whole])
    return [
      Held(held.name + name[len(held.whole) :], name, held.dtype, held.shape, held.runs) for name in names
    ]


def _other(name: str) -> str:
  a, b = ".linear_in.weight", ".linear_out.weight"
  return name.replace(a, b) if a in name else name.replace(b, a)


def _module_of(tensor: str) -> str:
  if not tensor.endswith(".weight"):
    raise reshard.UnsupportedError(f"'{tensor}' is no weight of a module that PEFT could adapt")
  return tensor.removesuffix(".weight")


def _entry(held: Held, parts: list[dict[str, Any]], padded: bool) -> dict[str, Any]:
  shape = list(held.shape)
  return {"name": held.whole, "shape": shape, "module_shape": shape, "dtype": held.dtype.lower(), "map": "identity",
          "padded": padded, "parts": parts}  # fmt: skip
