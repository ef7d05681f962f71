# SPDX-License-Identifier: Apache-2.0
"""vLLM's process groups, for any rank of any world, in one process without a network, and its
models as they are after their own load_weights and before any kernel repacks them.

What is replaced is only what communicates: a group knows its ranks and nothing else. Names, shapes,
dtypes and values of parameters are vLLM's own.
"""

import contextlib
import os
import sys
import unittest.mock
import warnings

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.simplefilter("ignore")
import torch  # noqa: E402
import torch.distributed  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import parallel_state  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.kernels import linear as linear_kernels  # noqa: E402
from vllm.model_executor.layers import quantization  # noqa: E402
from vllm.model_executor.layers.fused_moe import config as moe_config  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model  # noqa: E402
from vllm.model_executor.models import registry, utils as model_utils  # noqa: E402

# Classes are looked at in a process of their own, which takes as long as all the rest.
registry._run_in_subprocess = lambda look: look()


def _kernels():
  """For each choice of a kernel for experts, the one that takes weights as they are loaded.

  Which kernels there are is a matter of the device; a CPU has none for most.
  """
  from vllm.model_executor.layers.fused_moe.oracle import fp8, mxfp4, nvfp4, unquantized

  return {
    "select_unquantized_moe_backend": unquantized.UnquantizedMoeBackend.TRITON,
    "select_fp8_moe_backend": fp8.Fp8MoeBackend.TRITON,
    "select_mxfp8_moe_backend": fp8.Fp8MoeBackend.EMULATION,
    "select_nvfp4_moe_backend": nvfp4.NvFp4MoeBackend.EMULATION,
    "select_mxfp4_moe_backend": mxfp4.Mxfp4MoeBackend.EMULATION,
  }


def _choose_kernels():
  for method in ("fp8", "modelopt", "gpt_oss_mxfp4", "compressed-tensors"):
    quantization.get_quantization_config(method)  # imports what is patched below
  choices = {
    name: lambda *_, kernel=kernel, **__: (kernel, None) for name, kernel in _kernels().items()
  }
  for name in vars(linear_kernels):
    if name.startswith("init_") and name.endswith("_linear_kernel"):
      choices[name] = unittest.mock.MagicMock()
  layers = [m for name, m in sys.modules.items() if name.startswith("vllm.model_executor.layers.")]
  for name, choice in choices.items():
    for module in layers:
      if name in vars(module):
        setattr(module, name, choice)


_check_experts = moe_config.FusedMoEConfig.__post_init__


def _check_experts_but_for_kernels(self):
  """Experts without gates have no kernel on a CPU, which is the last thing that is checked."""
  with contextlib.suppress(NotImplementedError):
    _check_experts(self)


moe_config.FusedMoEConfig.__post_init__ = _check_experts_but_for_kernels


class _Group:
  """The ranks of a GroupCoordinator, and where this one is among them."""

  device_communicator = None
  mq_broadcaster = None

  def __init__(self, group_ranks, *_, **__):
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

  def destroy(self):
    pass


@contextlib.contextmanager
def rank_of(config, rank):
  """vLLM's parallel state as rank `rank` sees it: tp fastest, then pp, then dp."""
  p = config.parallel_config
  world = p.tensor_parallel_size * p.pipeline_parallel_size * p.data_parallel_size
  torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
  p.rank = rank % (world // p.data_parallel_size)
  p.data_parallel_rank = rank // (world // p.data_parallel_size)
  start = parallel_state.init_model_parallel_group
  parallel_state.init_model_parallel_group = _Group
  try:
    with set_current_vllm_config(config):
      parallel_state._WORLD = _Group([list(range(world))])
      parallel_state.initialize_model_parallel(
        p.tensor_parallel_size, p.pipeline_parallel_size, backend="fake"
      )
      yield
  finally:
    parallel_state.init_model_parallel_group = start
    parallel_state.destroy_model_parallel()
    parallel_state._WORLD = None
    torch.distributed.destroy_process_group()
    # Remembers by id() which layers a model lacks; ids come again.
    model_utils._model_to_pp_missing_layer_names.clear()


_choose_kernels()


def engine_config(checkpoint, sizes):
  """vLLM's configuration of a checkpoint folder. `sizes`: tp, pp, dp, and ep (a flag)."""
  arguments = EngineArgs(
    model=str(checkpoint),
    skip_tokenizer_init=True,
    enforce_eager=True,
    max_model_len=64,
    distributed_executor_backend="mp",
    tensor_parallel_size=sizes.get("tp", 1),
    pipeline_parallel_size=sizes.get("pp", 1),
    data_parallel_size=sizes.get("dp", 1),
    enable_expert_parallel=sizes.get("ep", False),
  )
  return arguments.create_engine_config()


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
