# SPDX-License-Identifier: Apache-2.0
"""OpenRLHF's trainer and engine, with stand-ins for Ray and for the attributes of its classes.

  openrlhf_actor.py START NEW: starts an engine on a checkpoint, updates it to itself and to another, and says what it generates,
  as JSON.
"""

import asyncio
import json
import sys
import threading
from types import ModuleType, SimpleNamespace

import torch
import transformers

sys.modules["ray"] = ray = ModuleType("ray")
ray.get = lambda future: future.result()

import patches
from server import PROMPTS, engine_options
from torch import distributed
from vllm import AsyncEngineArgs, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

NAMES = patches.names_of("OpenRLHF")
LOOP = asyncio.new_event_loop()


class RolloutRayActor:
  """Its engine, made as OpenRLHF makes it, and the method that the page adds."""

  call_workers = NAMES["call_workers"]

  def __init__(self, checkpoint):
    options = engine_options(checkpoint) | {"weight_transfer_config": {"backend": "reshard"}}
    self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**options))

  async def reset_prefix_cache(self):
    await self.llm.reset_prefix_cache()

  async def generated(self):
    """What greedy decoding adds to each prompt."""
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    said = []
    for i, prompt in enumerate(PROMPTS):
      async for output in self.llm.generate({"prompt_token_ids": prompt}, greedy, request_id=f"{i}-{id(said)}"):
        last = output
      said.append(list(last.outputs[0].token_ids))
    return said


class Handle:
  """A Ray actor of a thread."""

  def __init__(self, actor):
    self._actor = actor

  def __getattr__(self, name):
    def remote(*args, **kwargs):
      return asyncio.run_coroutine_threadsafe(getattr(self._actor, name)(*args, **kwargs), LOOP)

    return SimpleNamespace(remote=remote)


async def made(checkpoint):
  return RolloutRayActor(checkpoint)


def main():
  start, new = sys.argv[1:]
  threading.Thread(target=LOOP.run_forever, daemon=True).start()
  engine = Handle(asyncio.run_coroutine_threadsafe(made(start), LOOP).result())
  distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
  module = transformers.AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
  args = SimpleNamespace(vllm=SimpleNamespace(tensor_parallel_size=1))
  trainer = SimpleNamespace(
    actor=SimpleNamespace(model=SimpleNamespace(module=module)), strategy=SimpleNamespace(args=args), vllm_engines=[engine]
  )
  said = [ray.get(engine.generated.remote())]
  for folder in (start, new):
    weights = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    module.load_state_dict(weights.state_dict())
    NAMES["broadcast_to_vllm"](trainer)
    said.append(ray.get(engine.generated.remote()))
  print("said " + json.dumps(said), flush=True)


if __name__ == "__main__":
  main()
