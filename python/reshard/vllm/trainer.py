# SPDX-License-Identifier: Apache-2.0
"""The trainer of a vLLM engine. Does not import vLLM."""

from __future__ import annotations

from reshard.engines.link import TornError
from reshard.engines.trainer import EngineTrainer

__all__ = ["TornError", "Trainer"]


class Trainer(EngineTrainer):
  """Updates the weights of a running vLLM engine from tensors in any layout.

  Every rank of the trainer makes one, with equal arguments but for `rank`, `tensors` and `client`,
  and calls `update()` after a training step. The ranks may hold the weights in any layout:
  "megatron:...", "fsdp:...", "hf", DTensors, a layout of one's own. A refit moves each byte once,
  from the rank that has it to the workers that lack it; no rank gathers whole tensors.

  Collective, with the engine's workers. The engine must have been started with
  `--weight-transfer-config '{"backend": "reshard"}'`.

  layout      of the trainer, over the ranks [0, size).
  tensors     this rank's local tensors, by the layout's names: all on the host, or all on one GPU.
              Their addresses must not change.
  client      of rank 0: HttpClient, LocalClient, or one of vLLM's own; a list of the clients of several
              engines, which each update brings to one version (docs/targets.md). None on other ranks.
  rank, size  of this process among the trainer's.
  url         where the group meets (see `reshard.join`): "tcp://HOST:PORT" of a port that is free
              on rank 0's host, or "file:///FOLDER" that all can access; by default a folder of this
              host.
  job         a name that is new for each attempt; rank 0 makes one by default.
  secret      of 16 to 4096 characters; rank 0 makes one by default.
  transport   "shm" within a host; see `reshard.join`.
  workers     of the engine, of all data-parallel replicas; of several engines a list. By default the
              client is asked.
  route       how a worker takes its weights: "local" (its own parts only, as its loader would leave
              them), "checkpoint" (all tensors, through `load_weights`) or "auto" (local if its
              layout can be found out, else checkpoint).
  in_place    write straight into parameters whose storage is the kernels' own, without a second
              copy. A trainer that dies in the middle of an update then leaves a torn engine, which
              says so and refuses to run until the next update. By default the old weights stay
              until all of the new ones have arrived.
  verify      compare fingerprints of what was sent and what arrived, before it is used.
  pause       "wait", "abort" or "keep": pause the server around each update and clear its cache (a
              client with `pause()` and `resume()`). None: generation goes on between the steps, as
              with vLLM's own backends.
  deadline    seconds for joining, and for the refit of an update.
  draft       a reshard.vllm.Draft: the engine's draft model (speculative decoding), which is updated with the
              model, as one version. docs/vllm.md.
  only        patterns of the tensors to update ("*" matches any characters, "#" a number), also of the draft
              model ("draft:*") and of adapters, each of which is updated whole. A worker updates the layers of
              its own that hold something of them: with a query projection also key and value, with an expert
              all of its layer; on the route "checkpoint" everything. Others are neither planned nor sent, and
              keep their values. By default everything in the layouts.
  adapters    {name: reshard.lora.Adapter}: LoRA adapters in the layout that the engine loads from
              folders, which an update writes anew. docs/lora.md.
  merge       {name: peft.LoraConfig or dict}: LoRA adapters in the layout that are merged into what is
              sent, in memory of the trainer's own; see `reshard.lora.Merge`.
  check       the share of updates after which the engine is compared with a fresh load of the same values (docs/check.md):
              1 or True for all, 0.01 for one in a hundred, chosen by the version. An engine that differs is torn: it refuses
              to serve, and `update()` raises `reshard.check.DifferenceError`. `check()` compares on demand.
  snapshot    each update sends a copy of this rank's tensors, in host memory as large as they are, so that
              they may be written as soon as `update_async()` returns.
  on_phase    called when this rank enters a phase of an update: "begin", "transfer", "check",
              "commit", "committed". An exception ends the update on all ranks.

  Options are equal on all ranks. Those that rank 0 makes reach the others through the default group
  of torch.distributed, which must have the same ranks; without one, all ranks must be given them.

  Errors: ValueError for arguments; DeadlineError and AbortedError if a rank is missing or dies;
  TornError (an AbortedError) if a worker could not load what had arrived;
  UnsupportedError if a worker cannot take the model; RuntimeError of the client.
  """
