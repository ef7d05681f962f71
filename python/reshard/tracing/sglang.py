# SPDX-License-Identifier: Apache-2.0
"""Layouts of SGLang, traced from SGLang's own loaders: any model that this SGLang can build on a CPU, any
rank of tensor, pipeline, expert and attention data parallelism, in one process without a GPU.

Four things are replaced: what communicates (a process group knows its ranks and nothing else), a kernel that
is imported and never called, rotary embeddings that a CPU does not have, and what derives tensors from loaded
ones (`_derived`). So the result is the layout of parameters before process_weights_after_loading; whoever
writes them by it has the engine derive the rest anew. Use it in processes that run no engine: SGLang's
parallel state is taken over while a rank is built.
"""

import contextlib
import importlib.util
import json
import os
import sys
import types
import unittest.mock
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from reshard import _core
from reshard.tracing import Traced
from reshard.tracing._derived import nothing_derived
from reshard.tracing._engines import RankGroup, engine_keys, fake_world, load_weights, trace_ranks
from reshard.tracing.vision import import_torchvision

import_torchvision()  # SGLang imports it


def _name_kernels() -> None:
  """SGLang imports vLLM's rotary kernel where there is neither a GPU nor the AMX kernels of a CPU."""
  if importlib.util.find_spec("vllm") is None and "vllm" not in sys.modules:
    kernels: Any = types.ModuleType("vllm._custom_ops")
    kernels.rotary_embedding = None
    sys.modules["vllm"], sys.modules["vllm._custom_ops"] = types.ModuleType("vllm"), kernels


_name_kernels()

import sglang  # noqa: E402
from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.arg_groups.arg_utils import namespace_of  # noqa: E402
from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.distributed import parallel_state  # noqa: E402
from sglang.srt.layers.dp_attention import initialize_dp_attention  # noqa: E402
from sglang.srt.layers.moe import initialize_moe_config  # noqa: E402
from sglang.srt.layers.rotary_embedding import factory as rotary  # noqa: E402
from sglang.srt.model_loader import loader as model_loader  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402

__all__ = ["SglangRanks", "engine_config", "layout", "of_notation", "trace_sglang"]

#: What SGLang would choose on a GPU, and what it refuses on a CPU although no weight depends on it.
_AS_ON_A_GPU: dict[str, Any] = {
  "attention_backend": "triton",
  "moe_runner_backend": "triton",
  "disable_radix_cache": True,
  "disable_custom_all_reduce": True,
}

#: The module's groups, which are None until an engine makes them.
_GROUPS = frozenset(
  name for name, value in vars(parallel_state).items() if name.startswith("_") and name.isupper() and value is None
)


@contextlib.contextmanager
def _rotary_of_a_gpu() -> Iterator[None]:
  """On a CPU, DeepSeek's rotary embeddings, which hold no weights, are built with YaRN only."""
  on_a_cpu = rotary.get_rope_cpu

  def get_rope(*arguments: Any) -> Any:
    scaling, of_any_device = arguments[5], arguments[:-1]
    return on_a_cpu(*arguments) if scaling else rotary.get_rope(*of_any_device)

  with unittest.mock.patch.object(rotary, "get_rope_cpu", get_rope):
    yield


@contextlib.contextmanager
def parallel_state_of(arguments: Any, rank: int) -> Iterator[None]:
  """SGLang's parallel state as rank `rank` of an engine sees it: tp fastest, then pp."""
  world = arguments.tp_size * arguments.pp_size
  groups: dict[str, Any] = dict.fromkeys(_GROUPS)  # put back afterwards
  with (
    fake_world("SGLang", rank, world),
    unittest.mock.patch.multiple(parallel_state, init_model_parallel_group=RankGroup, **groups),
    runtime_context.use_context(
      runtime_context.create_context(
        arguments, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=rank)
      )
    ),
  ):
    parallel_state._WORLD = RankGroup([list(range(world))])
    runtime_context.get_parallel().override_permanently(world_group=parallel_state._WORLD)
    parallel_state.initialize_model_parallel(backend="gloo")
    initialize_dp_attention(arguments)
    initialize_moe_config()
    yield


def engine_config(
  model: str | os.PathLike[str], *, tp: int = 1, pp: int = 1, dp: int = 1, ep: int = 1, **more: Any
) -> Any:
  """SGLang's arguments for a checkpoint folder (its config.json is enough), as sglang.srt.server_args.ServerArgs.

  dp    attention data parallelism, a part of tp
  ep    expert parallelism, a part of tp
  more  further arguments of ServerArgs
  """
  said: dict[str, Any] = {
    "model_path": os.fspath(model),
    "device": "cpu",
    "tp_size": tp,
    "pp_size": pp,
    "ep_size": ep,
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    **_AS_ON_A_GPU,
  }
  if dp > 1:
    said |= {"dp_size": dp, "enable_dp_attention": True}
  made = ServerArgs(**(said | more))
  try:
    made.resolve_once()
  except AssertionError as error:  # not every class has every backend of attention, which no weight depends on
    if "attention backend" not in str(error) or "attention_backend" in more:
      raise
    made = ServerArgs(**({k: v for k, v in said.items() if k != "attention_backend"} | more))
    made.resolve_once()
  return made


class SglangRanks:
  """`build` and `load` of reshard.traced() for the ranks of an SGLang engine.

  arguments   a ServerArgs, as of engine_config()
  """

  def __init__(self, arguments: Any) -> None:
    self.arguments = arguments

  @property
  def world_size(self) -> int:
    return int(self.arguments.tp_size * self.arguments.pp_size)

  @contextlib.contextmanager
  def build(self, rank: int) -> Iterator[torch.nn.Module]:
    with self.module(rank) as module, nothing_derived(module):
      yield module

  @contextlib.contextmanager
  def module(self, rank: int) -> Iterator[torch.nn.Module]:
    """The module of a rank, as its engine builds it."""
    default = torch.get_default_dtype()
    with parallel_state_of(self.arguments, rank), _rotary_of_a_gpu():
      config = ModelConfig.from_server_args(self.arguments)
      load = LoadConfig(load_format="dummy")
      quantised = model_loader._get_quantization_config(config, load)
      torch.set_default_dtype(config.dtype)
      try:
        yield model_loader._initialize_model(config, load, quantised)
      finally:
        torch.set_default_dtype(default)

  load = staticmethod(load_weights)

  def key(self) -> dict[str, Any]:
    """What a traced layout depends on, beside the weights and what the arguments say."""
    with parallel_state_of(self.arguments, 0):
      model = ModelConfig.from_server_args(self.arguments)
    return {
      "engine": f"sglang {sglang.__version__}",
      "torch": torch.__version__,
      "config": json.loads(model.hf_config.to_json_string(use_diff=False)),
      "dtype": str(model.dtype),
    }


def trace_sglang(
  model: str | os.PathLike[str],
  *,
  tp: int = 1,
  pp: int = 1,
  dp: int = 1,
  ep: int = 1,
  weights: Any = None,
  ranks: Iterable[int] | None = None,
  method: str = "auto",
  prove: bool | str = True,
  **engine_arguments: Any,
) -> Traced:
  """reshard.tracing.trace() of an SGLang engine.

  model    a checkpoint's folder; with `weights` its config.json is enough
  weights  as of traced(); by default those of the folder
  ranks    by default all tp * pp of them, tp fastest; for fewer, weights that none of them holds are not
           omitted, but unknown
  dp, ep   as of engine_config()
  """
  sizes = {"tp": tp, "pp": pp, "dp": dp, "ep": ep}
  engine = SglangRanks(engine_config(model, **sizes, **engine_arguments))
  said = {k: str(v) for k, v in engine_arguments.items()}
  return trace_ranks(
    engine, f"sglang {sglang.__version__}", sizes, model,
    weights=weights, ranks=ranks, key={**engine.key(), "sizes": sizes, "arguments": said}, method=method, prove=prove,
  )  # fmt: skip


def layout(model: str | os.PathLike[str], **sizes: Any) -> _core.Layout:
  """trace_sglang(model, ...).layout"""
  return trace_sglang(model, **sizes).layout


def of_notation(model: str, weights: Any, keys: Mapping[str, str]) -> Traced:
  """trace_sglang() by the keys of a layout "traced:sglang,...": tp, pp, dp, ep, and further arguments of
  SGLang's ServerArgs."""
  known = frozenset(namespace_of(ServerArgs))
  sizes, more = engine_keys(keys, ("tp", "pp", "dp", "ep"), known, "sglang's ServerArgs")
  return trace_sglang(model, weights=weights, **sizes, **more)
