# SPDX-License-Identifier: Apache-2.0
"""What a rank's Megatron-Core modules hold, from their parameters' attributes.

The attributes mean what docs/megatron_api.md says: a parameter with `tensor_model_parallel` is cut
along `partition_dim` over the tensor-parallel group, in `partition_stride` equal blocks or the blocks
of `partition_sizes`, each cut by itself; one whose `allreduce` is False is an expert's. One with
`is_gtp_weight_remat` is cut once more: what tensor parallelism leaves to a rank is padded by `pad_length`
rows and divided equally over `group`. One without attributes of a module that has `local_dim`, `global_dim` and
`shard_world_size` is cut into so many shards, which ranks next to each other repeat. Layers are numbered by `layer_number`, experts by their position
in the expert-parallel group. Megatron-Bridge's adapters wrap a module: its parameters are below
`to_wrap`, and the factors below `adapter`, of which B is cut as the rows of the module's weight are.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from reshard._errors import InvalidArgumentError
from reshard.live._parts import Held, Run, whole_runs
from reshard.tracing._types import safetensors_name

_EXPERT = re.compile(r"(?<=\.)(?:local_experts\.|weight|bias)([0-9]+)(?=\.|$)")
_EXPERT_FC2 = re.compile(r"(?:^|\.)linear_fc2\.weight[0-9]*$")
_GATED = re.compile(r"(?:^|\.)linear_fc1\.(?:weight|bias)[0-9]*$")
_BIAS = re.compile(r"bias(?=[0-9]*$)")
_HEAD = re.compile(r"(?:^|(?<=\.))output_layer\.weight$")
_FACTOR = re.compile(
  r"(?P<module>.+)\.adapter(?:\.(?P<part>adapter_[a-z]+))?\.linear_(?P<kind>in|out)\.weight(?P<expert>[0-9]*)"
)


@dataclasses.dataclass(frozen=True)
class Chunk:
  """A module without wrappers, and what is put before the names of its tensors."""

  front: str  # of local names
  label: str  # of names that all ranks agree on
  module: Any
  groups: Any


def chunks_of(modules: Any) -> list[Chunk]:
  """The chunks of a rank's pipeline stage. Raises InvalidArgumentError for what is no module."""
  listed = list(modules) if isinstance(modules, Sequence) else [modules]
  found: list[Chunk] = []
  for number, module in enumerate(listed):
    front = f"model{number}." if len(listed) > 1 else ""
    core = _unwrapped(module, number)
    parts = getattr(core, "refit_modules", None)
    if parts is None:
      found.append(Chunk(front, "", core, _groups(core)))
      continue
    for label, part, groups in parts():
      inner = "" if part is core else _path(core, part) + "."
      found.append(Chunk(front + inner, f"{label}." if label else "", part, groups))
  return found


def _unwrapped(module: Any, number: int) -> Any:
  while isinstance(getattr(module, "module", None), torch.nn.Module):
    module = module.module
  if not isinstance(module, torch.nn.Module):
    raise InvalidArgumentError(f"module {number}: a {type(module).__name__} is no module of torch")
  return module


def _path(root: torch.nn.Module, part: Any) -> str:
  for name, module in root.named_modules():
    if module is part:
      return str(name)
  raise InvalidArgumentError(
    f"refit_modules() of {type(root).__name__} gives a {type(part).__name__} that is not in it"
  )


def _groups(module: Any) -> Any:
  groups = getattr(module, "pg_collection", None)
  if groups is not None:
    return groups
  config = importlib.import_module("megatron.core.process_groups_config")
  return config.ProcessGroupCollection.use_mpu_process_groups()


@dataclasses.dataclass(frozen=True)
class _Shard:
  """The rows that a rank has of what tensor parallelism leaves to it, without padding."""

  begin: int
  end: int
  rows: int  # of all ranks of the group

  @staticmethod
  def of(name: str, tensor: torch.Tensor) -> _Shard | None:
    """None for a parameter that generalised tensor parallelism does not cut."""
    if not getattr(tensor, "is_gtp_weight_remat", False):
      return None
    group: Any = getattr(tensor, "group", None)
    if group is None:
      raise InvalidArgumentError(f"'{name}': is_gtp_weight_remat is set, but not the group of its shards")
    size, padding = int(tensor.shape[0]), int(getattr(tensor, "pad_length", 0))
    rows = size * group.size() - padding
    if padding < 0 or rows <= 0:
      raise InvalidArgumentError(f"'{name}': pad_length {padding} of {group.size()} shards of {size} rows")
    begin = min(group.rank() * size, rows)
    return _Shard(begin, min(begin + size, rows), rows)

  def cut(self, runs: Sequence[Run]) -> tuple[Run, ...]:
    """The part of `runs`, which list all rows in order, that is in this shard."""
    found: list[Run] = []
    at = 0
    for first, last in runs:
      begin, end = max(self.begin - at, 0), min(self.end - at, last - first)
      if begin < end:
        found.append((first + begin, first + end))
      at += last - first
    return tuple(found)


def tensors_of(chunk: Chunk) -> Iterator[tuple[str, torch.Tensor]]:
  """Parameters, then persistent buffers, each once, with names within the chunk."""
  yield from chunk.module.named_parameters()
  for name, module, key in persistent_buffers(chunk.module):
    yield name, module._buffers[key]


def plain(name: str) -> str:
  """A name without what Megatron-Bridge's adapters put into it."""
  return name.replace(".to_wrap.", ".")


@dataclasses.dataclass(frozen=True)
class Factor:
  """Which factor of which of Megatron-Bridge's adapters a tensor is."""

  module: str  # the one that is adapted
  part: str  # of a fused module, which has adapters of its own: "adapter_q"; "" for all of it
  kind: str  # "A" or "B"
  expert: str  # its number, where a module has the weights of several and the name says of which; else ""

  @staticmethod
  def of(name: str) -> Factor | None:
    """None for tensors that are no factors."""
    found = _FACTOR.fullmatch(name)
    if found is None:
      return None
    return Factor(found["module"], found["part"] or "", {"in": "A", "out": "B"}[found["kind"]], found["expert"])

  @property
  def weight(self) -> str:
    """The weight that it changes."""
    return f"{self.module}.weight{self.expert}"


def persistent_buffers(root: torch.nn.Module) -> Iterator[tuple[str, Any, str]]:
  """The name of each, the module that has it, and its name there."""
  for prefix, module in root.named_modules():
    for key, buffer in module._buffers.items():
      if buffer is not None and key not in module._non_persistent_buffers_set:
        yield (f"{prefix}.{key}" if prefix else key), module, key


def is_quantised(tensor: torch.Tensor) -> bool:
  """Whether a parameter is of a quantised type of Transformer Engine."""
  return callable(getattr(tensor, "quantize_", None))


def module_tensors(modules: Any) -> dict[str, torch.Tensor]:
  """The tensors of Megatron-Core modules, by the names that of_modules() gives them.

  modules  as for of_modules()

  Parameters and persistent buffers; the chunks of a virtual pipeline have names "model0.decoder...".
  Rows that only pad a shard (`pad_length`) are left out, and with them a shard that has no others.
  Megatron replaces buffers when it casts a module, so pass a session a function:
  `source_tensors=lambda: reshard.module_tensors(modules)`.
  """
  found = {}
  for chunk in chunks_of(modules):
    for name, tensor in tensors_of(chunk):
      shard = _Shard.of(name, tensor)
      if shard is None:
        found[chunk.front + name] = tensor.detach()
      elif shard.begin < shard.end:
        found[chunk.front + name] = tensor.detach()[: shard.end - shard.begin]
  return found


def held_by(modules: Any) -> list[Held]:
  """What this rank holds, as parts of full tensors with names that all ranks agree on."""
  return [held for chunk in chunks_of(modules) for held in _Describer(chunk).run()]


class _Describer:
  """Describes one chunk."""

  def __init__(self, chunk: Chunk) -> None:
    self._chunk = chunk
    self._config = getattr(chunk.module, "config", None)
    self._tied = bool(getattr(chunk.module, "share_embeddings_and_output_weights", False))
    self._layers = layer_prefixes(chunk.module)
    self._packed = packed_sizes(chunk.module)
    self._shared = shared_shards(chunk.module)
    self._weights = dict(chunk.module.named_parameters())
    #: A weight that an adapter changes, and its name, by the name of the module; experts' weights are alike.
    self._adapted = {
      name: (f"{name}.{key}", weight)
      for name, part in chunk.module.named_modules()
      if hasattr(part, "adapter") and hasattr(part, "to_wrap")
      for key, weight in part.to_wrap._parameters.items()
      if key in ("weight", "weight0") and weight is not None
    }

  def run(self) -> Iterator[Held]:
    for name, tensor in tensors_of(self._chunk):
      held = self._held(name, tensor)
      if held.runs[:1] != ((),):  # not a shard of padding alone
        yield held

  def _held(self, name: str, tensor: torch.Tensor) -> Held:
    shape = [int(n) for n in tensor.shape]
    shard = _Shard.of(name, tensor)
    if shard is not None:
      shape[0] = shard.rows
    runs: list[tuple[Run, ...]] = list(whole_runs(shape))
    expert = self._is_expert(name, tensor)
    at, size = self._position("expt_tp" if expert else "tp", name)
    if count := self._shared.get(name):
      at, size = self._shard(name, at, size, count)
    if size > 1 and (count or self._is_cut(name, tensor, expert)):
      dim = self._cut_dim(name, tensor, expert)
      blocks = self._blocks(*self._cut_like(plain(name), tensor), shape[dim])
      runs[dim] = runs_of_blocks(blocks, at, size)
      shape[dim] *= size
    if shard is not None:
      runs[0] = shard.cut(runs[0])
    dtype = safetensors_name(tensor.dtype)
    local = self._chunk.front + name
    return Held(local, self._whole_name(name, tensor), dtype, tuple(shape), tuple(runs))

  def _shard(self, name: str, at: int, size: int, count: int) -> tuple[int, int]:
    """Which of `count` shards this rank has, one of `size` that hold each shard equally often; and the count."""
    if not 0 < count <= size or size % count != 0:
      raise InvalidArgumentError(f"'{name}': {count} shards over a group of {size}")
    return at // (size // count), count

  def _is_expert(self, name: str, tensor: torch.Tensor) -> bool:
    return getattr(tensor, "allreduce", True) is False or _expert_of(name) is not None or _is_shared(name)

  def _is_cut(self, name: str, tensor: torch.Tensor, expert: bool) -> bool:
    if expert or getattr(tensor, "tensor_model_parallel", False):
      # Megatron cuts every tensor of an expert; it has fc2 biases only where the group has one rank.
      return True
    # Learned offsets of softmax are one per head of this rank, and have no attributes.
    return not hasattr(tensor, "partition_dim") and name.endswith(".softmax_offset")

  def _cut_like(self, name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """The tensor whose blocks this one has: an adapter's B is added to what the module gives, row by row."""
    factor = Factor.of(name)
    if factor is None or factor.kind == "A" or factor.module not in self._adapted:
      return name, tensor
    of_weight, weight = self._adapted[factor.module]
    return (of_weight, weight) if weight.shape[0] == tensor.shape[0] else (name, tensor)

  def _cut_dim(self, name: str, tensor: torch.Tensor, expert: bool) -> int:
    if expert and "linear_fc" in name and ".adapter." not in name:
      return 1 if _EXPERT_FC2.search(plain(name)) and tensor.ndim > 1 else 0
    return max(int(getattr(tensor, "partition_dim", 0)), 0)

  def _blocks(self, name: str, tensor: torch.Tensor, rows: int) -> list[int]:
    """Sizes of this rank's parts of a dimension, each of which is cut by itself."""
    sizes = getattr(tensor, "partition_sizes", None) or self._packed.get(name)
    if sizes is not None:
      if sum(sizes) != rows:
        raise InvalidArgumentError(f"'{name}': blocks {list(sizes)} of a dimension of {rows}")
      return [int(n) for n in sizes]
    stride = int(getattr(tensor, "partition_stride", 1))
    if stride == 1 and _GATED.search(name) and self._is_gated(name) and not self._is_plain(name):
      stride = 2  # older releases do not say so of biases and grouped experts
    if rows % stride != 0:
      raise InvalidArgumentError(f"'{name}': partition_stride {stride} does not divide {rows}")
    return [rows // stride] * stride

  def _is_gated(self, name: str) -> bool:
    return bool(getattr(self._config_of(name), "gated_linear_unit", False)) and not self._interleaved(name)

  def _is_plain(self, name: str) -> bool:
    """Whether the second layer of an MLP takes all that the first one gives: a merger's, whose config is that of its tower,
    in which others are gated."""
    first = _BIAS.sub("weight", name)
    one, two = (self._weights.get(of) for of in (first, first.replace("linear_fc1.", "linear_fc2.")))
    return one is not None and two is not None and two.ndim == 2 and one.shape[0] == two.shape[1]

  def _config_of(self, name: str) -> Any:
    """The config of the innermost module around a tensor that has one: a tower's is not its model's."""
    at, found = self._chunk.module, self._config
    for part in name.split("."):
      found = getattr(at, "config", None) or found
      at = at._modules.get(part)
    return found

  def _interleaved(self, name: str) -> bool:
    """Whether gates and ups alternate, so that each rank has whole blocks of both."""
    if ".shared_experts." in name:
      key = "moe_shared_expert_glu_interleave_size"
    elif ".experts." in name:
      key = "moe_mlp_glu_interleave_size"
    else:
      return False
    return bool(getattr(self._config, key, None))

  def _position(self, kind: str, name: str) -> tuple[int, int]:
    """This rank's position in a group, and the size of the group; (0, 1) without one."""
    group = getattr(self._chunk.groups, kind, None)
    if group is None and kind == "expt_tp":
      group = getattr(self._chunk.groups, "tp", None)
    if group is None:
      return 0, 1
    at, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    if at < 0:
      raise InvalidArgumentError(f"'{name}': this rank is not in the module's {kind} group")
    return at, size

  def _whole_name(self, name: str, tensor: torch.Tensor) -> str:
    resolved = self._chunk.label + resolve_layers(name, self._layers)
    if self._tied:  # a copy of the embedding, on another stage
      resolved = _HEAD.sub("embedding.word_embeddings.weight", resolved)
    expert, shared = _expert_of(resolved), _is_shared(resolved)
    if (expert is None and not shared) or getattr(tensor, "allreduce", True) is not False:
      return resolved  # without expert parallelism, local numbers are global
    at, size = self._position("ep", name)
    experts = int(getattr(self._config, "num_moe_experts", None) or 0)
    if experts < 1 or experts % size != 0:
      raise InvalidArgumentError(f"'{name}': {experts} experts over an expert-parallel group of {size}")
    first = at * (experts // size)
    if expert is None:  # other ranks have other values
      return f"{resolved}[{first}:{first + experts // size}]"
    return resolved[: expert.start(1)] + str(int(expert.group(1)) + first) + resolved[expert.end(1) :]


def _expert_of(name: str) -> re.Match[str] | None:
  return _EXPERT.search(name) if ".experts." in name or name.startswith("experts.") else None


def _is_shared(name: str) -> bool:
  """Whether this is a factor of an adapter that a rank's experts share."""
  return ".experts." in name and ".adapter." in name and _expert_of(name) is None


def runs_of_blocks(blocks: Sequence[int], at: int, size: int) -> tuple[Run, ...]:
  """Rows of the full tensor that member `at` of `size` equal ones holds, block by block."""
  runs: list[Run] = []
  first = 0
  for rows in blocks:
    begin = first + at * rows
    if runs and runs[-1][1] == begin:
      runs[-1] = (runs[-1][0], begin + rows)
    else:
      runs.append((begin, begin + rows))
    first += size * rows
  return tuple(runs)


def layer_prefixes(module: torch.nn.Module) -> dict[str, str]:
  """Local prefix of a layer -> the one with its number in the whole model."""
  found = {}
  for name, part in module.named_modules():
    front, _, last = name.rpartition(".")
    number = getattr(part, "layer_number", None)
    if last.isdigit() and isinstance(number, int):
      found[name] = f"{front}.{number - 1}" if front else str(number - 1)
  return found


def resolve_layers(name: str, layers: Mapping[str, str]) -> str:
  """Replaces the longest prefix that is a layer's."""
  parts = name.split(".")
  for end in range(len(parts) - 1, 0, -1):
    prefix = ".".join(parts[:end])
    if prefix in layers:
      return layers[prefix] + name[len(prefix) :]
  return name


def packed_sizes(module: torch.nn.Module) -> dict[str, list[int]]:
  """This rank's rows of each part of projections that pack several, where releases of Megatron-Core
  do not set `partition_sizes`: by how the mixers take apart what these give."""
  found: dict[str, list[int]] = {}
  for name, part in module.named_modules():
    p: Any = part
    kind = type(part).__name__
    if kind == "MambaMixer":
      inner, state = p.d_inner_local_tp, p.ngroups_local_tp * p.d_state
      found[f"{name}.in_proj.weight"] = [inner, inner, state, state, p.nheads_local_tp]
      convolution = [inner, state, state]
    elif kind == "GatedDeltaNet":
      keys, values, heads = p.qk_dim // p.tp_size, p.v_dim // p.tp_size, p.num_v_heads_local_tp
      found[f"{name}.in_proj.weight"] = [keys, keys, values, values, heads, heads]
      convolution = [keys, keys, values]
    else:
      continue
    for conv in ("conv1d.weight", "conv1d.bias", "conv1d_weight", "conv1d_bias"):
      found[f"{name}.{conv}"] = convolution
  return found


def shared_shards(module: torch.nn.Module) -> dict[str, int]:
  """Of parameters that say nothing of themselves, and whose modules say how many different shards a group has: norms over
  all heads, of which ranks beyond their number hold copies."""
  found = {}
  for name, part in module.named_modules():
    local, full, count = (getattr(part, key, None) for key in ("local_dim", "global_dim", "shard_world_size"))
    if isinstance(local, int) and isinstance(full, int) and isinstance(count, int) and local * count == full:
      for key, tensor in part._parameters.items():
        if tensor is not None and tuple(tensor.shape) == (local,) and not hasattr(tensor, "partition_dim"):
          found[f"{name}.{key}"] = count
  return found


def values_of(modules: Any) -> dict[str, str]:
  """The keys of the notation megatron: that say what a config says about values and their order."""
  keys: dict[str, str] = {}
  for chunk in chunks_of(modules):
    config = getattr(chunk.module, "config", None)
    for key, attribute in (
      ("glu_interleave", "moe_mlp_glu_interleave_size"),
      ("shared_glu_interleave", "moe_shared_expert_glu_interleave_size"),
    ):
      if getattr(config, attribute, None):
        keys[key] = str(getattr(config, attribute))
    centred = getattr(config, "layernorm_zero_centered_gamma", None)
    if centred is not None:
      keys["gamma"] = "zero_centered" if centred else "plain"
  return keys


def names_of(names: Sequence[str]) -> dict[str, str]:
  """The keys that say which names a release and spec of Megatron-Core uses, from those of all ranks."""
  keys: dict[str, str] = {}
  if not any(name.endswith(".layer_norm_weight") for name in names):
    keys["norms"] = "separate"
  for key, value, part in (
    ("experts", "sequential", ".local_experts."),
    ("mamba_names", "old", ".conv1d."),
    ("mtp_names", "new", ".mtp_model_layer."),
    ("mla_down", "fused", ".linear_qkv_down_proj."),
  ):
    if any(part in name for name in names):
      keys[key] = value
  return keys
