# SPDX-License-Identifier: Apache-2.0
"""The shards that Megatron-Bridge's own mappings give to a rank, with values.

What ranks hold is read from the attributes of their modules' parameters. This is the check of it: a mapping cuts a tensor
as it does on the first rank of a group, and instead of sending the shards keeps the one of the rank that is asked about.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from reshard.learn.shards import Tensors
from reshard.live import _parts
from reshard.live._bridge import fresh, model_bridge, owners_of, parts_of, taken
from reshard.live._modules import plain

from megatron.bridge.models.conversion.param_mapping import MegatronParamMapping  # isort: skip


def shards(bridge: Any, modules: Any, held: Iterable[_parts.Held], tensors: Tensors) -> Tensors:
  """By local name: what this rank gets of the tensors, of those for which there is a mapping."""
  made = model_bridge(bridge)
  registry, loader, found = made.mapping_registry(), fresh(made), {}
  with _as_the_first(), owners_of(modules) as owners:
    for one in held:
      mapping = registry.megatron_to_hf_lookup(plain(one.whole))
      if mapping is not None and set(parts_of(mapping).values()) <= tensors.keys():
        found[one.name] = mapping.hf_to_megatron(taken(loader, mapping, tensors), owners[one.name])
  return found


@contextlib.contextmanager
def _as_the_first() -> Iterator[None]:
  """Lets mappings cut as on the first rank of their group, and send nothing."""
  rank_of: Any = vars(MegatronParamMapping)["tp_rank"].fget
  spec_of: Any = vars(MegatronParamMapping)["_get_shard_spec"]

  def spec(self: Any, **keys: Any) -> tuple[int, int]:
    count, _ = spec_of(self, **keys)
    return count, rank_of(self) // (self.tp_size // count)

  changed: dict[str, Any] = {
    "tp_rank": 0,
    "_get_shard_spec": spec,
    "scatter_to_tp_ranks": lambda self, splits, *_, **__: splits[rank_of(self)],
    "broadcast_tensor_to_tp_ranks": lambda self, tensor, *_, **__: tensor,
  }
  before = {name: vars(MegatronParamMapping)[name] for name in changed}
  for name, value in changed.items():
    setattr(MegatronParamMapping, name, value)
  try:
    yield
  finally:
    for name, value in before.items():
      setattr(MegatronParamMapping, name, value)
