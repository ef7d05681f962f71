# SPDX-License-Identifier: Apache-2.0
"""Fresh loads by vLLM's own constructor, loader and processing, in the process of a worker, and the check against them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype

from reshard.check._fresh import Fresh, check
from reshard.check._report import Report
from reshard.check._rules import Rules
from reshard.vllm import reload

__all__ = ["RULES", "check_model", "fresh_of"]

Weights = Callable[[], Iterable[tuple[str, torch.Tensor]]]

# A matrix is read whole from a packed one by its product with the identity; a larger one by products with a few rows.
_WHOLE = 2**31
_ROWS = 16


def _packed_matrix(module: torch.nn.Module, handler: Any) -> Iterator[tuple[str, torch.Tensor]]:
  """What oneDNN holds of a weight: its product with the identity, or with some rows. Nothing of integers."""
  from vllm import _custom_ops as ops

  function = getattr(module, "cpu_linear", None)
  if not getattr(function, "__closure__", None):  # of a kernel that takes quantised inputs
    return
  dtype = next((p.dtype for p in module.parameters() if p.dtype.is_floating_point), torch.get_default_dtype())
  k, n = handler.k, handler.n
  if k * k * n <= _WHOLE:
    rows = torch.eye(k, dtype=dtype)
  else:
    rows = torch.randn(_ROWS, k, generator=torch.Generator().manual_seed(1)).to(dtype)
  yield "packed", ops.onednn_mm(handler, rows, None)


RULES = Rules(
  attributes={
    "KV caches": ("kv_cache", "kv_caches"),
    "compiled code": ("compiled", "compiled_callable", "original_code_object", "_compiled_bytecode", "aot_compiled_fn"),
  },
  types={"attention backends": ("vllm.v1.worker",)},
  native={"CPUDNNLGEMMHandler": _packed_matrix},
)


def fresh_of(vllm_config: Any, model_config: Any, device: torch.device, weights: Weights | str) -> Fresh:
  """How a worker of vLLM loads a model, in its own process and with its own ranks.

  weights  a checkpoint's folder, which vLLM's loader reads; or a function that gives whole tensors under its names, anew each
           time

  On a GPU the fresh model is in the host's memory, and vLLM brings each layer to the GPU while it processes it, as it does for
  models that are offloaded. (Never run on a GPU.)
  """

  @contextlib.contextmanager
  def build() -> Iterator[torch.nn.Module]:
    with _own_tables(vllm_config), set_current_vllm_config(vllm_config), set_default_torch_dtype(model_config.dtype):
      with torch.device("cpu"):
        model = initialize_model(vllm_config=vllm_config, model_config=model_config)
      yield model

  def load(model: torch.nn.Module) -> None:
    if isinstance(weights, str):
      with _model_of(model_config, weights):
        get_model_loader(vllm_config.load_config).load_weights(model, model_config)
    else:
      given = iter(weights())
      cast(Any, model).load_weights(given)
      for _ in given:  # who sends them goes on to the end
        pass

  def process(model: torch.nn.Module) -> None:
    if any(getattr(getattr(m, "quant_method", None), "uses_meta_device", False) for m in model.modules()):
      layerwise.finalize_layerwise_processing(model, model_config)
    process_weights_after_loading(model, model_config, device)
    model.eval()

  return Fresh(build, [("load_weights", load), ("process_weights_after_loading", process)])


def check_model(
  model: torch.nn.Module,
  vllm_config: Any,
  device: torch.device,
  weights: Weights | str,
  *,
  model_config: Any = None,
  rank: int = 0,
  anyone: Callable[[bool], bool] = bool,
) -> Report:
  """Compares a worker's live model with a fresh load of the same values; `weights` as of fresh_of(), the others as of check().

  Errors: those of vLLM's loader.
  """
  fresh = fresh_of(vllm_config, model_config or vllm_config.model_config, device, weights)
  with reload.without_adapters(model):
    return check(model, fresh, RULES, rank, anyone)


@contextlib.contextmanager
def _own_tables(vllm_config: Any) -> Iterator[None]:
  """Tables in which layers enter themselves by name, empty: the live model's are there again at the end."""
  from vllm.model_executor.layers import rotary_embedding
  from vllm.model_executor.models import utils

  compilation = vllm_config.compilation_config
  names = [n for n in ("static_forward_context", "static_all_moe_layers") if hasattr(compilation, n)]
  before = {n: getattr(compilation, n) for n in names}
  kept = [(table, dict(table)) for table in (utils._model_to_pp_missing_layer_names, rotary_embedding._ROPE_DICT)]
  for name, table in before.items():
    setattr(compilation, name, type(table)())
  rotary_embedding._ROPE_DICT.clear()  # models share these modules
  try:
    yield
  finally:
    for name, table in before.items():
      setattr(compilation, name, table)
    for cache, entries in kept:
      cache.clear()
      cache.update(entries)


@contextlib.contextmanager
def _model_of(model_config: Any, folder: str) -> Iterator[None]:
  """The config says that the model is in another folder."""
  before = model_config.model
  model_config.model = folder
  try:
    yield
  finally:
    model_config.model = before
