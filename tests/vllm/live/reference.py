# SPDX-License-Identifier: Apache-2.0
"""What engines that are started on a checkpoint generate, and their checksums.

One process for all of them, because most of what a start takes is importing vLLM. Reads a line of
JSON for each engine, the arguments of vllm.LLM; answers with a line that begins with "answer".
"""

import gc
import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine is in this process


def answer(options):
  from server import PROMPTS
  from vllm import LLM, SamplingParams
  from vllm.distributed import cleanup_dist_env_and_memory
  from vllm.lora.request import LoRARequest

  adapter = options.pop("adapter", None)
  lora = None if adapter is None else LoRARequest("adapter", 1, adapter)
  llm = LLM(**options)
  greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
  outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], greedy, use_tqdm=False, lora_request=lora)
  checksums = {}
  for of_worker in llm.collective_rpc("compute_weight_checksums"):
    checksums |= of_worker
  llm.llm_engine.engine_core.shutdown()
  del llm
  cleanup_dist_env_and_memory()
  gc.collect()
  return [[list(output.outputs[0].token_ids) for output in outputs], checksums]


def main():
  for line in sys.stdin:
    print("answer " + json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
  main()
