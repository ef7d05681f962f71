# SPDX-License-Identifier: Apache-2.0
"""What the tracers of inference engines share: ranks without a network, keys of the notation, the call of trace()."""

import contextlib
import difflib
import json
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed

import reshard
from reshard.tracing import Traced, trace


class RankGroup:
  """The ranks of a GroupCoordinator of vLLM or SGLang, and where this one is among them."""

  device_communicator = None
  mq_broadcaster = None
  pynccl_comm = None
  ca_comm = None

  def __init__(self, group_ranks: list[list[int]], *_: Any, **__: Any) -> None:
    self.rank = self.local_rank = torch.distributed.get_rank()
    self.ranks = next(ranks for ranks in group_ranks if self.rank in ranks)
    self.world_size = len(self.ranks)
    self.rank_in_group = self.ranks.index(self.rank)
    self.device = torch.device("cpu")
    self.cpu_group = self.device_group = torch.distributed.group.WORLD
    self.unique_name = "ranks"

  first_rank = property(lambda self: self.ranks[0])
  last_rank = property(lambda self: self.ranks[-1])
  is_first_rank = property(lambda self: self.rank == self.ranks[0])
  is_last_rank = property(lambda self: self.rank == self.ranks[-1])

  def destroy(self) -> None:
    pass


@contextlib.contextmanager
def fake_world(engine: str, rank: int, size: int) -> Iterator[None]:
  """torch's fake process group, as rank `rank` of `size`."""
  from torch.testing._internal.distributed.fake_pg import FakeStore

  if torch.distributed.is_initialized():
    raise reshard.UnsupportedError(
      f"torch.distributed is in use in this process; trace {engine}'s layouts in another one"
    )
  torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
  try:
    yield
  finally:
    torch.distributed.destroy_process_group()


def trace_ranks(
  engine: Any,
  release: str,
  sizes: Mapping[str, int],
  model: str | os.PathLike[str],
  *,
  weights: Any,
  ranks: Iterable[int] | None,
  key: Mapping[str, Any],
  method: str,
  prove: bool | str,
) -> Traced:
  """trace() of an engine's ranks.

  engine   has `build`, `load` and `world_size`
  release  its name and version, for people
  sizes    the parallel sizes, for people
  key      what the layout depends on beside the weights
  others   as of trace_vllm() and trace_sglang()
  """
  return trace(
    engine.build,
    engine.load,
    pathlib.Path(model) if weights is None else weights,
    ranks=range(engine.world_size) if ranks is None else ranks,
    method=method,
    prove=prove,
    omit=ranks is None,
    name=" ".join([f"traced {release}", *(f"{k}={v}" for k, v in sizes.items() if v > 1)]),
    key=key,
  )


def load_weights(module: Any, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
  """`load` of reshard.traced() for the models of both engines."""
  module.load_weights(weights)


def engine_keys(
  keys: Mapping[str, str], sizes: Iterable[str], known: Collection[str], arguments: str
) -> tuple[dict[str, Any], dict[str, Any]]:
  """The parallel sizes (1 where a layout's notation does not say one) and the further arguments of an engine.

  known      the names of its arguments
  arguments  what they are arguments of, for messages
  """
  said: dict[str, Any] = {key: _size(key, keys.get(key, "1")) for key in sizes}
  more = {key: _value(text) for key, text in keys.items() if key not in said}
  for key in more:
    if key not in known:
      raise reshard.InvalidArgumentError(
        f"unknown key '{key}'{_meant(key, known)}; known are {', '.join(said)}, offset and the arguments of {arguments}"
      )
  return said, more


def _size(key: str, text: str) -> int:
  if not text.isdecimal() or not 0 < int(text) <= 1 << 20:
    raise reshard.InvalidArgumentError(f"{key}={text} must be a whole number from 1 to {1 << 20}")
  return int(text)


def _value(text: str) -> Any:
  """An argument of the engine: true, false, a number, or else the text."""
  try:
    return json.loads(text)
  except ValueError:
    return text


def _meant(key: str, known: Iterable[str]) -> str:
  near = difflib.get_close_matches(key, sorted(known), 1)
  return f"; did you mean '{near[0]}'?" if near else ""
