# SPDX-License-Identifier: Apache-2.0
"""A trainer and an engine in one process: refits the engine after each step, and proves that every byte arrived.

  python examples/python/refit_in_process.py
"""

import reshard


def train(weights: reshard.RankBuffers, step: int) -> None:
  """Stands for a training step: changes every byte of the weights."""
  for rank in weights.ranks:
    for tensor in weights.tensors(rank).values():
      memory = tensor.raw()
      memory[:] = bytes([step]) * len(memory)


def main() -> None:
  model = reshard.open_model("demo-moe")
  trainer = reshard.layout("megatron:tp=2,ep=4,etp=1", model)
  engine = reshard.layout("vllm:tp=2", model)

  # Here reshard allocates the memory; RankBuffers(layout, {rank: {name: tensor}}) takes your own.
  source = reshard.RankBuffers.allocate(trainer)
  target = reshard.RankBuffers.allocate(engine)

  refit = reshard.InProcessRefit(reshard.plan(trainer, engine), source, target)  # plans once
  for step in (1, 2, 3):
    train(source, step)
    report = refit.run()
    print(f"step {step}: {report.bytes:,} bytes in {report.seconds * 1e3:.1f} ms")

  reshard.compare_fingerprints(reshard.fingerprints(source), reshard.fingerprints(target))
  print("every tensor is the same on both sides")


if __name__ == "__main__":
  main()
