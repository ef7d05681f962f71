# SPDX-License-Identifier: Apache-2.0
"""Trains a small model with TRL's GRPO against a vLLM server on the CPU, whose weights reshard updates after each step.

    make trl-env                                          # TRL, vLLM and reshard in build/trl-venv
    build/trl-venv/bin/python examples/python/grpo_tiny.py --steps 100 --plot grpo.svg

A prompt names a parity and four numbers; the reward is the share of the answer's words that are numbers of that parity. The
model begins with random weights. Needs no network. Prints a line for each step, and ends with 1 if the reward has not risen.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import datasets
import reshard.trl
import torch
import transformers
import trl

PARITIES = ("even", "odd")
WORDS = ("<pad>", "<end>", *PARITIES, *(str(i) for i in range(40)))
PROMPTS, GENERATIONS, LENGTH = 8, 8, 16  # of a step; tokens of an answer


def write_checkpoint(folder: pathlib.Path) -> None:
  """A Qwen3 with random weights, and a tokenizer of one word per token."""
  torch.manual_seed(0)
  config = transformers.Qwen3Config(
    vocab_size=len(WORDS), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=64, max_position_embeddings=64, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    tie_word_embeddings=False, dtype="float32",
  )  # fmt: skip
  transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
  model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "<pad>"}
  empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
  tokenizer: dict[str, Any] = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, **empty, "model": model}
  (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
  said = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<pad>"}
  (folder / "tokenizer_config.json").write_text(json.dumps(said))


def prompts(count: int) -> Iterator[dict[str, str]]:
  """Prompts, equal in each run."""
  choose = random.Random(0)
  for i in range(count):
    yield {"prompt": " ".join([PARITIES[i % 2], *(str(choose.randrange(40)) for _ in range(4))])}


def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
  """The share of LENGTH words that are numbers of the prompt's parity."""
  found = []
  for prompt, ids in zip(prompts, completion_ids, strict=True):
    wanted = PARITIES.index(prompt.split()[0])
    numbers = [int(WORDS[i]) for i in ids if WORDS[i].isdigit()]
    found.append(sum(number % 2 == wanted for number in numbers) / LENGTH)
  return found


@contextlib.contextmanager
def server(folder: pathlib.Path, log: pathlib.Path, workers: int = 1) -> Iterator[str]:
  """The URL of `vllm serve` on a checkpoint, in processes of its own."""
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
  command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
  command += ["--dtype", "float32", "--max-model-len", "64", "--max-num-seqs", "64", "--enforce-eager"]
  command += ["--tensor-parallel-size", str(workers)]
  command += ["--weight-transfer-config", '{"backend": "reshard"}', "--logprobs-mode", "processed_logprobs"]
  small = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
  quiet = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
  # Some processors stop in oneDNN's AMX kernels.
  env = os.environ | small | quiet | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
  with log.open("w") as out:
    process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
  try:
    url = f"http://127.0.0.1:{port}"
    while not answers(url):
      if process.poll() is not None:
        raise SystemExit(f"the server ended:\n{log.read_text()[-4000:]}")
      time.sleep(0.5)
    yield url
  finally:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def answers(url: str) -> bool:
  try:
    with urllib.request.urlopen(f"{url}/health"):
      return True
  except urllib.error.URLError:
    return False


class Log(transformers.TrainerCallback):  # type: ignore[misc]
  """A row for each step: what its rollouts earned, and the update before them."""

  def __init__(self) -> None:
    self.rows: list[dict[str, float]] = []
    self._update: reshard.trl.Update | None = None

  def updated(self, update: reshard.trl.Update) -> None:
    """Of reshard.trl: has fingerprints and checks behind it, which raise where something differs."""
    self._update = update

  def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
    """Of TRL, after each step."""
    update = self._update
    if update is None or logs is None or "reward" not in logs:
      return
    checked = update.trainer.checked
    row = {
      "step": state.global_step,
      "version": update.report.version,
      "reward": logs["reward"],
      "refit_ms": 1e3 * update.report.seconds,
      "update_ms": 1e3 * update.seconds,
      "tensors_equal": checked.tensors if checked is not None and checked.equal else 0,
      "logprob_difference": logs["sampling/sampling_logp_difference/max"],
    }
    self.rows.append(row)
    print(
      "step {step:3d}  reward {reward:.3f}  version {version}: fingerprints equal, {tensors_equal} tensors of the engine equal  "
      "refit {refit_ms:.1f} ms, with check {update_ms:.0f} ms  log-probabilities differ by {logprob_difference:.1e}".format(**row),
      flush=True,
    )


def train(folder: pathlib.Path, url: str, steps: int) -> list[dict[str, float]]:
  """The rows of a run."""
  log = Log()
  reshard.trl.install(on_update=log.updated, verify=True, check=1.0)  # all that reshard needs of a program
  args = trl.GRPOConfig(
    output_dir=str(folder / "out"), use_cpu=True, bf16=False, report_to="none", save_strategy="no", seed=0,
    gradient_checkpointing=False, disable_tqdm=True, logging_steps=1, max_steps=steps,
    per_device_train_batch_size=PROMPTS * GENERATIONS, num_generations=GENERATIONS, max_completion_length=LENGTH,
    learning_rate=3e-3, lr_scheduler_type="linear", scale_rewards="none", beta=0.0,
    use_vllm=True, vllm_mode="server", vllm_server_base_url=url,
  )  # fmt: skip
  trainer = trl.GRPOTrainer(
    model=str(folder),
    reward_funcs=reward,
    args=args,
    train_dataset=datasets.Dataset.from_list(list(prompts(PROMPTS * steps))),
    callbacks=[log],
  )
  trainer.train()
  return log.rows


def plot(rows: list[dict[str, float]], path: pathlib.Path) -> None:
  """Reward, time of a refit, and how far the log-probabilities of server and trainer are apart."""
  from matplotlib.figure import Figure

  figure: Any = Figure(figsize=(7, 6), layout="constrained")
  top, middle, bottom = figure.subplots(3, 1, sharex=True)
  steps = [row["step"] for row in rows]
  top.plot(steps, [row["reward"] for row in rows])
  top.set(ylabel="reward", ylim=(0, 1.02), title="GRPO of TRL, rollouts of vLLM, weights by reshard")
  middle.plot(steps, [row["update_ms"] for row in rows], label="update with check")
  middle.plot(steps, [row["refit_ms"] for row in rows], label="its refit")
  middle.set(ylabel="ms", yscale="log")
  middle.legend(loc="center right")
  bottom.plot(steps, [row["logprob_difference"] for row in rows])
  bottom.set(xlabel="step", yscale="log", ylabel="largest difference of\nlog-probabilities")
  figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--steps", type=int, default=100)
  parser.add_argument("--workers", type=int, default=1, help="of the server, which share each layer (tensor parallelism): 1 or 2")
  parser.add_argument("--plot", type=pathlib.Path, help="a picture of the run, such as grpo.svg (needs matplotlib)")
  parser.add_argument("--log", type=pathlib.Path, help="the rows as JSON")
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    write_checkpoint(folder)
    with server(folder, folder / "server.log", args.workers) as url:
      began = time.perf_counter()
      rows = train(folder, url, args.steps)
  if args.log is not None:
    args.log.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
  if args.plot is not None:
    plot(rows, args.plot)
  first, last = (sum(row["reward"] for row in part) / len(part) for part in (rows[:5], rows[-5:]))
  print(f"{len(rows)} steps in {time.perf_counter() - began:.0f} s: reward {first:.3f} of the first five, {last:.3f} of the last five")
  return 0 if last > first else 1


if __name__ == "__main__":
  sys.exit(main())
