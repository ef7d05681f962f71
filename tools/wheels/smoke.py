# SPDX-License-Identifier: Apache-2.0
"""What a wheel does after `pip install`, in a Python that has nothing else: imports, plans, refits between processes.

    python smoke.py

Needs no other file. Two processes hold a trainer's and an engine's ranks, move the weights over shared memory and
verify them by fingerprints.
"""

import multiprocessing
import subprocess
import sys
import tempfile
import time

import reshard


def layouts():
  model = reshard.open_model("demo-moe")
  return reshard.layout("megatron:tp=2,ep=2,etp=1", model), reshard.layout("vllm:tp=2", model)


def process(rank, folder):
  trainer, engine = layouts()
  source = reshard.RankBuffers.allocate(trainer, [rank])
  target = reshard.RankBuffers.allocate(engine, [rank])
  group = reshard.join(f"file://{folder}", rank=rank, size=2, transport="shm")
  with reshard.Session(group, source=trainer, source_tensors=source, target=engine, target_tensors=target, verify="always") as session:
    for version in (1, 2):
      for tensor in source.tensors(rank).values():
        memory = tensor.raw()
        memory[:] = bytes([version]) * len(memory)
      report = session.refit(version)
    assert session.target_version().version == 2
  for tensor in target.tensors(rank).values():
    memory = bytes(tensor.raw())
    padding = memory.count(0)  # of the vocabulary
    assert memory.count(2) + padding == len(memory) and padding < len(memory) / 100
  if rank == 0:
    print(f"refit between processes: verified, {report.received:,} bytes received in {report.seconds * 1e3:.1f} ms", flush=True)


def main():
  begin = time.monotonic()
  trainer, engine = layouts()
  plan = reshard.plan(trainer, engine)
  assert len(trainer.ranks) == 2 and plan is not None
  print(f"reshard {reshard.__version__} on Python {sys.version.split()[0]}: {len(reshard.example_names())} configs")
  # A config, a card and a cluster that are inside.
  planned = ["plan", "--model", "qwen3-30b-a3b", "--from", "megatron:tp=4", "--to", "vllm:tp=8", "--cluster", "dgx-h100-400g"]
  for command in (["reshard", "--version"], ["reshard", "doctor"], [sys.executable, "-m", "reshard", *planned]):
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    print(" ".join(command[:2]), "...", said.stdout.splitlines()[-1])
  with tempfile.TemporaryDirectory() as folder:
    start = multiprocessing.get_context("spawn")
    ranks = [start.Process(target=process, args=(rank, folder)) for rank in (0, 1)]
    for rank in ranks:
      rank.start()
    for rank in ranks:
      rank.join()
    ended = [rank.exitcode for rank in ranks]
    assert ended == [0, 0], f"the processes ended with {ended}"
  for transport in reshard.transports():
    print(f"  {transport.name:8} {'ready' if transport.available else transport.reason}")
  print(f"wheel: works, in {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
  main()
