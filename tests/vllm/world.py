# SPDX-License-Identifier: Apache-2.0
"""vLLM's models of any rank of any world, in one process: as they are after their own load_weights and before any
kernel repacks them. Names, shapes, dtypes and values of parameters are vLLM's own (reshard/tracing/vllm.py)."""

import contextlib
import os
import warnings

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.simplefilter("ignore")
import torch  # noqa: E402
from reshard.tracing import vllm as tracing  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model  # noqa: E402


@contextlib.contextmanager
def rank_of(config, rank):
  """vLLM's parallel state as rank `rank` sees it."""
  with tracing.assumed_kernels(), tracing.parallel_state_of(config, rank):
    yield


def engine_config(checkpoint, sizes):
  """vLLM's configuration of a checkpoint folder. `sizes`: tp, pp, dp, and ep (a flag)."""
  return tracing.engine_config(checkpoint, **sizes)


def loaded(config, weights):
  """The parameters of this rank's model after vLLM's own load, by name. Call inside rank_of()."""
  config.compilation_config.static_forward_context.clear()
  torch.set_default_dtype(config.model_config.dtype)
  try:
    model = initialize_model(config)
    model.load_weights(iter(weights.items()))
  finally:
    torch.set_default_dtype(torch.float32)
  return {name: tensor.detach() for name, tensor in model.named_parameters()}


def layout_of(sizes, more=""):
  """The notation of vLLM's `sizes` (tp, pp, dp, ep=True) as this version names experts."""
  keys = [f"{key}={sizes[key]}" for key in ("tp", "pp", "dp") if key in sizes]
  if sizes.get("ep"):
    keys.append(f"ep={sizes.get('tp', 1) * sizes.get('dp', 1)}")
  return "vllm:" + ",".join([*keys, "experts=routed_experts"]) + more


def held_by_vllm(config, folder, rank):
  """The same of a checkpoint's weights, which are read anew: loaders write into what they are given."""
  weights = {}
  for path in sorted(folder.glob("*.safetensors")):
    weights |= load_file(path)
  with rank_of(config, rank):
    return loaded(config, weights)
