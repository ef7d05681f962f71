# SPDX-License-Identifier: Apache-2.0
"""Layouts of vLLM, traced from vLLM's own loaders: any model that this vLLM can load, any rank of
tensor, pipeline, expert and data parallelism, in one process without a GPU.

What is replaced is only what communicates (a process group knows its ranks and nothing else), and,
on a machine without the kernels, which kernel runs experts: one is assumed that takes weights as
they are loaded. The result is the layout before process_weights_after_loading, as checkpoints and
layerwise reload see it. In other processes than those of an engine only: vLLM's parallel state is
taken over while a rank is built.
"""

import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
import unittest.mock
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import vllm
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs

import reshard
from reshard import _core
from reshard.tracing import Traced
from reshard.tracing._engines import RankGroup, engine_keys, fake_world, load_weights, trace_ranks

#: Packages of kernels for GPUs.
_KERNEL_PACKAGES = ("cutlass", "cuda")

__all__ = ["VllmRanks", "layout", "of_notation", "trace_vllm"]


@contextlib.contextmanager
def parallel_state_of(config: Any, rank: int) -> Iterator[None]:
  """vLLM's parallel state as rank `rank` sees it: tp fastest, then pp, then dp."""
  from vllm.model_executor.models import utils as model_utils

  p = config.parallel_config
  stages = p.tensor_parallel_size * p.pipeline_parallel_size
  world = stages * p.data_parallel_size
  with fake_world("vLLM", rank, world):
    before = p.rank, p.data_parallel_rank
    p.rank, p.data_parallel_rank = rank % stages, rank // stages
    start = parallel_state.init_model_parallel_group
    parallel_state.init_model_parallel_group = RankGroup
    try:
      with set_current_vllm_config(config):
        with torch.device("cpu"):  # whatever device the model is built on
          parallel_state._WORLD = RankGroup([list(range(world))])
          parallel_state.initialize_model_parallel(
            p.tensor_parallel_size, p.pipeline_parallel_size, backend="fake"
          )
        yield
    finally:
      parallel_state.init_model_parallel_group = start
      parallel_state.destroy_model_parallel()
      parallel_state._WORLD = None
      p.rank, p.data_parallel_rank = before
      # Remembers by id() which layers a model lacks; ids come again.
      model_utils._model_to_pp_missing_layer_names.clear()


def _expert_kernels() -> dict[str, Any]:
  """For each choice of a kernel for experts, one that takes weights as they are loaded."""
  from vllm.model_executor.layers.fused_moe.oracle import fp8, mxfp4, nvfp4, unquantized

  return {
    "select_unquantized_moe_backend": unquantized.UnquantizedMoeBackend.TRITON,
    "select_fp8_moe_backend": fp8.Fp8MoeBackend.TRITON,
    "select_mxfp8_moe_backend": fp8.Fp8MoeBackend.EMULATION,
    "select_nvfp4_moe_backend": nvfp4.NvFp4MoeBackend.EMULATION,
    "select_mxfp4_moe_backend": mxfp4.Mxfp4MoeBackend.EMULATION,
  }


class _TakesWeights:
  """A kernel for codes of integers as they are loaded."""

  def __init__(self, *_: Any, **__: Any) -> None: ...


class _AbsentPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds stand-ins for packages of kernels for GPUs, which models import and do not call while they are built."""

  def __init__(self, names: Iterable[str]) -> None:
    self._names = set(names)

  def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
    root = name.partition(".")[0]
    return importlib.machinery.ModuleSpec(name, self, is_package=True) if root in self._names else None

  def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
    module = types.ModuleType(spec.name)
    module.__getattr__ = lambda _: unittest.mock.MagicMock()  # type: ignore[method-assign]
    return module

  def exec_module(self, module: types.ModuleType) -> None: ...


@contextlib.contextmanager
def _absent_packages() -> Iterator[None]:
  import vllm.triton_utils

  absent = [name for name in _KERNEL_PACKAGES if importlib.util.find_spec(name) is None]
  finder, before = _AbsentPackages(absent), set(sys.modules)
  sys.meta_path.append(finder)
  try:
    with contextlib.ExitStack() as stack:
      replace = unittest.mock.patch.object
      stack.enter_context(replace(vllm.triton_utils.triton, "set_allocator", lambda *_: None, create=True))
      if not torch.cuda.is_available():
        stack.enter_context(replace(torch.cuda, "Stream", unittest.mock.MagicMock()))
      yield
  finally:
    sys.meta_path.remove(finder)
    for name in set(sys.modules) - before:
      if name.partition(".")[0] in absent:
        del sys.modules[name]


def _attention_backend(choose: Callable[..., Any]) -> Callable[..., Any]:
  """`choose` with a stand-in for sparse attention where the machine has none: it holds no parameters."""
  backend = unittest.mock.MagicMock()
  backend.get_impl_cls.return_value = lambda **_: types.SimpleNamespace(
    is_sparse=True, supports_dense_mha_prefill=False, dcp_world_size=1
  )

  def chosen(*arguments: Any, attn_selector_config: Any, **more: Any) -> Any:
    try:
      return choose(*arguments, attn_selector_config=attn_selector_config, **more)
    except NotImplementedError:
      if not attn_selector_config.use_sparse:
        raise
      return backend

  return chosen


@contextlib.contextmanager
def assumed_kernels() -> Iterator[None]:
  """While no kernel is there to choose: names and shapes of parameters do not depend on it, but
  vLLM refuses to build a layer without one."""
  from vllm.model_executor.kernels import linear as linear_kernels
  from vllm.model_executor.layers import quantization
  from vllm.model_executor.layers.fused_moe import config as moe_config
  from vllm.v1.attention import selector

  for method in ("fp8", "modelopt", "gpt_oss_mxfp4", "compressed-tensors", "auto_awq", "auto_gptq"):
    quantization.get_quantization_config(method)  # imports what is replaced below
  choices: dict[str, Any] = {
    name: lambda *_, kernel=kernel, **__: (kernel, None)
    for name, kernel in _expert_kernels().items()
  }
  for name in vars(linear_kernels):
    if name.startswith("init_") and name.endswith("_linear_kernel"):
      choices[name] = unittest.mock.MagicMock()
  # For codes of integers a class is chosen, and Marlin is asked for beforehand.
  choices["choose_mp_linear_kernel"] = lambda *_, **__: _TakesWeights
  choices["verify_marlin_supported"] = lambda *_, **__: None
  check = moe_config.FusedMoEConfig.__post_init__

  def check_all_but_kernels(self: Any) -> None:
    # Experts without gates have no kernel on a CPU, which is the last thing that is checked.
    with contextlib.suppress(NotImplementedError):
      check(self)

  with contextlib.ExitStack() as stack:
    replace = unittest.mock.patch.object
    for module in [m for n, m in sys.modules.items() if n.startswith("vllm.model_executor.layers.")]:
      for name in choices.keys() & vars(module).keys():
        stack.enter_context(replace(module, name, choices[name]))
    stack.enter_context(
      replace(moe_config.FusedMoEConfig, "__post_init__", check_all_but_kernels)
    )
    stack.enter_context(_absent_packages())
    choose = "_cached_get_attn_backend"
    stack.enter_context(replace(selector, choose, _attention_backend(getattr(selector, choose))))
    yield


def engine_config(
  model: str | os.PathLike[str], *, tp: int = 1, pp: int = 1, dp: int = 1, ep: bool = False, **more: Any
) -> Any:
  """vLLM's configuration of a checkpoint folder (its config.json is enough). `more`: further
  arguments of vllm.EngineArgs."""
  from vllm.model_executor.models import registry

  # vLLM would inspect model classes in a subprocess, which takes as long as everything else.
  in_process = unittest.mock.patch.object(registry, "_run_in_subprocess", lambda look: look())
  arguments = {
    "model": os.fspath(model),
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 64,
    "enable_prefix_caching": False,  # changes no weight, and vLLM refuses it for some hybrid models on a CPU
    "distributed_executor_backend": "mp",
    "tensor_parallel_size": tp,
    "pipeline_parallel_size": pp,
    "data_parallel_size": dp,
    "enable_expert_parallel": ep,
    **more,
  }
  with in_process:
    return EngineArgs(**arguments).create_engine_config()


@dataclasses.dataclass
class VllmRanks:
  """`build` and `load` of reshard.traced() for the ranks of a vLLM engine.

  config   a VllmConfig, as of engine_config()
  """

  config: Any

  @property
  def world_size(self) -> int:
    p = self.config.parallel_config
    return int(p.tensor_parallel_size * p.pipeline_parallel_size * p.data_parallel_size)

  @contextlib.contextmanager
  def build(self, rank: int) -> Iterator[torch.nn.Module]:
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.model_executor.models import registry

    default = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
      stack.enter_context(
        unittest.mock.patch.object(registry, "_run_in_subprocess", lambda look: look())
      )
      stack.enter_context(assumed_kernels())
      stack.enter_context(parallel_state_of(self.config, rank))
      self.config.compilation_config.static_forward_context.clear()
      torch.set_default_dtype(self.config.model_config.dtype)
      try:
        yield initialize_model(self.config)
      finally:
        torch.set_default_dtype(default)

  load = staticmethod(load_weights)

  def key(self) -> dict[str, Any]:
    """What a traced layout depends on, beside the weights."""
    p = self.config.parallel_config
    model = self.config.model_config
    return {
      "engine": f"vllm {vllm.__version__}",
      "torch": torch.__version__,
      "config": json.loads(model.hf_config.to_json_string(use_diff=False)),
      "dtype": str(model.dtype),
      "sizes": [p.tensor_parallel_size, p.pipeline_parallel_size, p.data_parallel_size],
      "experts": [p.enable_expert_parallel, p.enable_eplb, str(p.expert_placement_strategy)],
      "redundant": str(getattr(p, "eplb_config", None)),
      "quantization": str(model.quantization),
    }


def trace_vllm(
  model: str | os.PathLike[str],
  *,
  tp: int = 1,
  pp: int = 1,
  dp: int = 1,
  ep: bool = False,
  weights: Any = None,
  ranks: Iterable[int] | None = None,
  method: str = "auto",
  prove: bool | str = True,
  **engine_arguments: Any,
) -> Traced:
  """reshard.tracing.trace() of a vLLM engine.

  model    a checkpoint's folder; with `weights` its config.json is enough
  weights  as of traced(); by default those of the folder
  ranks    by default all tp * pp * dp of them, tp fastest, then pp, then dp; for fewer, weights that
           none of them holds are not omitted, but unknown
  ep       vLLM's enable_expert_parallel
  """
  engine = VllmRanks(engine_config(model, tp=tp, pp=pp, dp=dp, ep=ep, **engine_arguments))
  sizes = {"tp": tp, "pp": pp, "dp": dp, "ep": tp * dp if ep else 1}
  return trace_ranks(
    engine, f"vllm {vllm.__version__}", sizes, model,
    weights=weights, ranks=ranks, key=engine.key(), method=method, prove=prove,
  )  # fmt: skip


def layout(model: str | os.PathLike[str], **sizes: Any) -> _core.Layout:
  """trace_vllm(model, ...).layout"""
  return trace_vllm(model, **sizes).layout


def of_notation(model: str, weights: Any, keys: Mapping[str, str]) -> Traced:
  """trace_vllm() by the keys of a layout "traced:vllm,...": tp, pp, dp, ep (1, or tp * dp), and
  further arguments of vllm.EngineArgs."""
  known = {field.name for field in dataclasses.fields(EngineArgs)}
  sizes, more = engine_keys(keys, ("tp", "pp", "dp", "ep"), known, "vllm.EngineArgs")
  ep = sizes.pop("ep")
  if ep not in (1, sizes["tp"] * sizes["dp"]):
    raise reshard.InvalidArgumentError(
      f"ep={ep}: vLLM spreads experts over all tp * dp ranks of a stage: 1 or {sizes['tp'] * sizes['dp']}"
    )
  return trace_vllm(model, weights=weights, ep=ep > 1, **sizes, **more)
