# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's process groups, for any rank of any world, in one process without a network; and
its modules that ask for a GPU, built on the CPU.

What is replaced is only what computes: the kernels of mamba_ssm and flash-linear-attention, the
CUDA device and random state, and Transformer Engine's norm by torch's. Names, shapes and attributes of
parameters are Megatron-Core's own.
"""

import contextlib
import importlib
import importlib.util
import sys
import types
import warnings

import torch
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore


class _GatedNorm(torch.nn.Module):
  """Stands for mamba_ssm's RMSNorm: the same parameter."""

  def __init__(self, size, device=None, dtype=None, **_):
    super().__init__()
    self.weight = torch.nn.Parameter(torch.ones(size, device=device, dtype=dtype))
    self.register_parameter("bias", None)


def _module(name, **members):
  module = types.ModuleType(name)
  module.__dict__.update(members)
  sys.modules[name] = module


def _kernel(*_, **__):
  raise NotImplementedError("a kernel of a GPU")


def _pretend_kernels():
  """Lets Megatron-Core's mixers be constructed; calling a kernel would fail."""
  for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
    _module(name, __path__=[])
  _module("mamba_ssm.ops.triton.selective_state_update", selective_state_update=_kernel)
  _module("mamba_ssm.ops.triton.layernorm_gated", RMSNorm=_GatedNorm)
  _module(
    "mamba_ssm.ops.triton.ssd_combined",
    mamba_chunk_scan_combined=_kernel,
    mamba_split_conv1d_scan_combined=_kernel,
  )


def _pretend_triton():
  """For the import of Megatron-Core's own kernels. To be called after torch has looked for triton."""
  if importlib.util.find_spec("triton") is None:
    _module("triton.language", constexpr=int)
    _module("triton", __path__=[], jit=lambda kernel: kernel, language=sys.modules["triton.language"])


_pretend_kernels()
warnings.simplefilter("ignore")

from megatron.core import parallel_state  # noqa: E402

_pretend_triton()
from megatron.core.ssm import gated_delta_net, mamba_block, mamba_mixer  # noqa: E402
from megatron.core.transformer import multi_latent_attention  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.torch_norm import WrappedTorchNorm  # noqa: E402


class _NoRandomState:
  def fork(self, *_):
    return contextlib.nullcontext()


_start_attention = DotProductAttention.__init__


def _start_mla_attention(self, *args, k_channels=None, v_channels=None, **keys):
  """Attention of the local spec does not know MLA's sizes; it has no parameters that depend on them."""
  _start_attention(self, *args, **keys)


DotProductAttention.__init__ = _start_mla_attention
if not torch.cuda.is_available():
  torch.cuda.current_device = lambda: torch.device("cpu")
  torch.Tensor.cuda = lambda tensor, *_, **__: tensor
for mixer in (mamba_mixer, gated_delta_net):
  mixer.get_cuda_rng_tracker = _NoRandomState
gated_delta_net.HAVE_FLA = True
# Absent without Transformer Engine, yet asked for with isinstance.
multi_latent_attention.TELinear = type("TELinear", (), {})
with contextlib.suppress(ImportError):  # where the stack of MambaModel is from 0.18 on
  mamba_block = importlib.import_module("megatron.core.models.hybrid.hybrid_block")
mamba_block.TENorm = WrappedTorchNorm


@contextlib.contextmanager
def rank_of(world, rank, **sizes):
  """Megatron-Core's parallel state as rank `rank` of `world` sees it."""
  torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
  try:
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **sizes)
    yield
  finally:
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
