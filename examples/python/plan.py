# SPDX-License-Identifier: Apache-2.0
"""Plans a refit between two published shapes' layouts, and shows what each rank has to do. Reads no weights.

  python examples/python/plan.py [model] [from] [to]
"""

import sys

import reshard

GB = 1e9


def main(name: str = "qwen3-30b-a3b", trainer: str = "megatron:tp=4,ep=8,etp=1", engine: str = "vllm:tp=8,offset=8") -> None:
  model = reshard.open_model(name)
  source = reshard.layout(trainer, model)
  target = reshard.layout(engine, model)

  plan = reshard.plan(source, target)
  print(plan)
  print()
  print(reshard.explain(plan))
  print()

  # Every rank can compute its own part alone; the digest tells whether all have the same plan.
  busiest = plan.rank(plan.busiest_sender)
  print(busiest)
  for transfer in busiest.sends[:3]:
    print(f"  {transfer.tensor}{transfer.box} to rank {transfer.dst}: {transfer.bytes:,} bytes")

  # Who sends to whom, in bytes: plan.plot("plan.png") draws it.
  traffic = plan.traffic
  for sender in source.ranks[:2]:
    sizes = ", ".join(f"{traffic[sender, receiver] / GB:.2f}" for receiver in target.ranks)
    print(f"  rank {sender} to each rank of the engine: {sizes} GB")


if __name__ == "__main__":
  main(*sys.argv[1:])
