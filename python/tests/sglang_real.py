# SPDX-License-Identifier: Apache-2.0
"""SGLang's own engine methods, scheduler part, updaters and Llama on the host, where SGLang is installed.

Real: `Engine`'s three update calls, the tokenizer manager's part of them, `SchedulerWeightUpdaterManager`,
`TpModelWorker.deserialize_own_rank`, `WeightUpdater` (which looks the custom loader up), the requests
between them, and `LlamaForCausalLM` under tensor parallelism. Stand-ins, as the wheel's kernels need a GPU:
what starts the processes and carries requests to them, and kernels that are imported and never
called. No token is generated."""

import asyncio
import types

import torch

import reshard.tracing.sglang  # noqa: F401 - first: it makes SGLang importable without its kernels
from sglang.srt.entrypoints.engine import Engine as RealEngine
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.runtime_context import SpawnRanks, get_model, publish
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.aio_rwlock import RWLock

LOADER = "reshard.sglang.load"


def _arguments(folder, size):
  return ServerArgs(
    model_path=str(folder), device="cpu", tp_size=size, dtype="bfloat16", load_format="dummy",
    skip_tokenizer_init=True, disable_custom_all_reduce=True, custom_weight_loader=[LOADER],
  )  # fmt: skip


class _Control(TokenizerControlMixin):
  """The tokenizer manager's part of an update. Requests go through pipes."""

  def __init__(self, pipes):
    self._pipes = pipes
    self.is_pause, self.is_pause_cond, self.model_update_lock = False, asyncio.Condition(), RWLock()
    self.mm_processor = None
    self.begin_weight_update_communicator = self._send
    self.end_weight_update_communicator = self._send
    self.update_weights_from_tensor_communicator = self._send

  def auto_create_handle_loop(self):
    pass

  async def _send(self, request):
    for pipe in self._pipes:
      pipe.send(request)
    answers = [pipe.recv() for pipe in self._pipes]
    for answer in answers:
      assert not isinstance(answer, str), answer  # a worker that raised would have ended the engine
    return answers


class Engine(RealEngine):
  """SGLang's engine, without the processes that its constructor starts."""

  def __init__(self, pipes, folder):
    self.server_args = _arguments(folder, len(pipes))
    publish(self.server_args, role="tokenizer")
    self.loop = asyncio.new_event_loop()
    self.tokenizer_manager = _Control(pipes)


class Worker:
  """What a scheduler process of SGLang has for updates: a target model, and a draft model."""

  def __init__(self, rank, size, folder, store):
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from transformers import AutoConfig

    publish(_arguments(folder, size), role="scheduler", ranks=SpawnRanks(world_rank=rank))
    where = {"distributed_init_method": f"file://{store}", "backend": "gloo"}
    init_distributed_environment(world_size=size, rank=rank, local_rank=rank, **where)
    initialize_model_parallel(backend="gloo")
    torch.set_default_dtype(torch.bfloat16)
    self.config = AutoConfig.from_pretrained(folder)
    self.model, self.draft = self.make(), self.make()
    torch.set_default_dtype(torch.float32)
    worker = types.SimpleNamespace(
      deserialize_own_rank=lambda payload: TpModelWorker.deserialize_own_rank(None, payload),
      weight_update_runners=lambda: [("target", self._runner(rank, self.model))],
    )
    draft = types.SimpleNamespace(weight_update_runners=lambda: [("draft", self._runner(rank, self.draft))])
    self.manager = SchedulerWeightUpdaterManager(
      tp_worker=worker, draft_worker=draft, memory_saver_adapter=None, flush_cache=lambda **_: True,
      is_fully_idle=lambda **_: True, scheduler=types.SimpleNamespace(record_weight_version_change=lambda **_: None),
    )  # fmt: skip

  def make(self):
    """Another model of the same kind, whose weights are zeros."""
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(self.config)
    torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
      parameter.data.zero_()
    return model

  def _runner(self, rank, model):
    updater = WeightUpdater(
      tp_rank=rank, device="cpu", gpu_id=0, model_config=None, custom_weight_loaders=get_model().custom_weight_loader,
      get_model=lambda: model, update_model_fields=None, recapture_cuda_graph=None, get_model_runner=None,
    )  # fmt: skip
    return types.SimpleNamespace(weight_updater=updater)

  def answer(self, request):
    """What the scheduler answers to a request."""
    calls = {
      "BeginWeightUpdateReqInput": self.manager.begin_weight_update,
      "EndWeightUpdateReqInput": self.manager.end_weight_update,
      "UpdateWeightsFromTensorReqInput": self.manager.update_weights_from_tensor,
    }
    return calls[type(request).__name__](request)

  def untouched(self):
    """True if the draft model is as it was made."""
    return not any(bool(parameter.any()) for parameter in self.draft.parameters())
