# SPDX-License-Identifier: Apache-2.0
"""SGLang's own engine methods, scheduler part, updaters and Llama on the host, where SGLang is installed.

Real: `Engine`'s three update calls, the tokenizer manager's part of them, `SchedulerWeightUpdaterManager`,
`TpModelWorker.deserialize_own_rank`, `WeightUpdater` (which looks the custom loader up), the requests
between them, and `LlamaForCausalLM` under tensor parallelism. Stand-ins, as the wheel's kernels need a GPU:
what starts the processes and carries requests to them, and kernels that are imported and never
called. No token is generated."""

import asyncio
import copy
import types

import sglang_served
import torch

import reshard.tracing.sglang  # noqa: F401 - first: it makes SGLang importable without its kernels
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.entrypoints.engine import Engine as RealEngine
from sglang.srt.lora.lora_manager import LoRAManager
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.llama_eagle import LlamaForCausalLMEagle
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
from sglang.srt.models.mimo_mtp import MiMoMTP
from sglang.srt.runtime_context import SpawnRanks, get_context, get_model, publish
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.aio_rwlock import RWLock

LOADER = "reshard.sglang.load"
DRAFTS = {
  "eagle": LlamaForCausalLMEagle, "eagle3": LlamaForCausalLMEagle3, "mtp": MiMoMTP, "small": LlamaForCausalLM,
}  # fmt: skip


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
    self.update_weight_version_communicator = self._skip

  def auto_create_handle_loop(self):
    pass

  async def _send(self, request):
    for pipe in self._pipes:
      pipe.send(request)
    answers = [pipe.recv() for pipe in self._pipes]
    for answer in answers:
      assert not isinstance(answer, str), answer  # a worker that raised would have ended the engine
    return answers


  async def _skip(self, request):
    """Schedulers note the version for the requests that they have."""
    return []

  def record_config_updates(self, source, **fields):
    """As TokenizerManager does."""
    get_context().override(source, **fields)


class Engine(RealEngine):
  """SGLang's engine, without the processes that its constructor starts."""

  def __init__(self, pipes, folder):
    self.server_args = _arguments(folder, len(pipes))
    publish(self.server_args, role="tokenizer")
    self.loop = asyncio.new_event_loop()
    self.tokenizer_manager = _Control(pipes)


def manager_of(model, folders, targets):
  """SGLang's LoRAManager of a model, with adapters of files. A stand-in pins nothing, for there is no GPU."""
  tensor, pinned = torch.tensor, torch.Tensor.pin_memory
  torch.tensor = lambda *values, pin_memory=False, **options: tensor(*values, **options)
  torch.Tensor.pin_memory = lambda self: self
  try:
    made = LoRAManager(
      base_model=model, base_hf_config=model.config, max_loras_per_batch=3, load_config=LoadConfig(), dtype=torch.bfloat16,
      server_args=None, lora_backend="torch_native", max_lora_rank=8,
      target_modules=targets, lora_paths=None,
    )  # fmt: skip
    for name, folder in folders.items():
      answer = made.load_lora_adapter(LoRARef(lora_name=name, lora_path=folder, pinned=False))
      assert answer.success, answer.error_message
  finally:
    torch.tensor, torch.Tensor.pin_memory = tensor, pinned
  return made


class Worker:
  """What a scheduler process of SGLang has for updates: a target model, draft models, and adapters."""

  def __init__(self, rank, size, folder, store):
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from transformers import AutoConfig

    publish(_arguments(folder, size), role="scheduler", ranks=SpawnRanks(world_rank=rank))
    where = {"distributed_init_method": f"file://{store}", "backend": "gloo"}
    init_distributed_environment(world_size=size, rank=rank, local_rank=rank, **where)
    initialize_model_parallel(backend="gloo")
    torch.set_default_dtype(torch.bfloat16)
    self.config = AutoConfig.from_pretrained(folder)
    self.rank = rank
    self.plain = self.make(), [self.make()], None
    self.serve("", {})
    torch.set_default_dtype(torch.float32)
    worker = types.SimpleNamespace(
      deserialize_own_rank=lambda payload: TpModelWorker.deserialize_own_rank(None, payload),
      weight_update_runners=lambda: [("target", self._runner(rank, self.model, self.manager))],
    )
    draft = types.SimpleNamespace(
      weight_update_runners=lambda: [(f"draft_step_{i}", self._runner(rank, d, None)) for i, d in enumerate(self.drafts)]
    )
    self.manager_of_updates = SchedulerWeightUpdaterManager(
      tp_worker=worker, draft_worker=draft, memory_saver_adapter=None, flush_cache=lambda **_: True,
      is_fully_idle=lambda **_: True, scheduler=types.SimpleNamespace(record_weight_version_change=lambda **_: None),
    )  # fmt: skip

  def serve(self, kind, folders):
    """Serves a draft model of a kind and adapters; "" and {}: what the worker was made with."""
    self.kind = kind
    self.model, self.drafts, self.manager = self.fresh(folders) if kind or folders else self.plain
    if self.manager:
      self.manager.fetch_new_loras({next(iter(self.manager.lora_refs))})

  def fresh(self, folders):
    """A target, its draft models, which share with it what SGLang's workers have them share, and adapters of files."""
    model = self.make()
    drafts = {"eagle": 1, "eagle3": 1, "mtp": 2, "small": 1}.get(self.kind, 0)
    return model, [self._draft(model) for _ in range(drafts)], self._manager(model, folders)

  def _manager(self, model, folders):
    return manager_of(model, folders, [*sglang_served.LINEAR, "lm_head", "embed_tokens"]) if folders else None

  def _draft(self, target):
    config = copy.deepcopy(self.config)
    config.num_hidden_layers, config.draft_vocab_size, config.target_hidden_size = 1, sglang_served.HOT, config.hidden_size
    torch.set_default_dtype(torch.bfloat16)
    draft = DRAFTS[self.kind](config)
    torch.set_default_dtype(torch.float32)
    for parameter in draft.parameters():
      parameter.data.zero_()
    embed, head = target.get_embed_and_head()
    if self.kind in ("eagle", "mtp"):  # as EagleDraftWorker.init_lm_head() does
      draft.set_embed_and_head(embed, head)
    elif self.kind == "eagle3":
      draft.set_embed(embed)
    return draft

  def make(self):
    """Another model of the same kind, whose weights are zeros."""
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(self.config)
    torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
      parameter.data.zero_()
    return model

  def _runner(self, rank, model, manager):
    updater = WeightUpdater(
      tp_rank=rank, device="cpu", gpu_id=0, model_config=None, custom_weight_loaders=get_model().custom_weight_loader,
      get_model=lambda: model, update_model_fields=None, recapture_cuda_graph=None, get_model_runner=lambda: runner,
    )  # fmt: skip
    runner = types.SimpleNamespace(weight_updater=updater, model=model, lora_manager=manager)
    return runner

  def answer(self, request):
    """What the scheduler answers to a request."""
    calls = {
      "BeginWeightUpdateReqInput": self.manager_of_updates.begin_weight_update,
      "EndWeightUpdateReqInput": self.manager_of_updates.end_weight_update,
      "UpdateWeightsFromTensorReqInput": self.manager_of_updates.update_weights_from_tensor,
    }
    return calls[type(request).__name__](request)

  def untouched(self):
    """True if the draft model is as it was made."""
    return not any(bool(parameter.any()) for parameter in self.drafts[0].parameters())
