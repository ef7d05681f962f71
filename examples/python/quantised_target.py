# SPDX-License-Identifier: Apache-2.0
"""The engine holds MXFP8, the trainer BF16: the session quantises on the way and verifies before each commit.

Ranks are threads of this process; each makes the same calls as a process of its own would.

  python examples/python/quantised_target.py
"""

from concurrent.futures import ThreadPoolExecutor

import reshard

RANKS = 2


def run(group: reshard.ProcessGroup, trainer: reshard.Layout, engine: reshard.Layout) -> str:
  me = group.rank
  weights = reshard.RankBuffers.allocate(trainer, [me])
  for tensor in weights.tensors(me).values():
    tensor.raw()[:] = b"\x3c" * tensor.nbytes  # 0.0115 in BF16
  served = reshard.RankBuffers.allocate(engine, [me])

  with reshard.Session(
    group, source=trainer, source_tensors=weights, target=engine, target_tensors=served, verify="always"
  ) as session:
    report = session.refit(1)
    routes = session.conversions
  return (
    f"rank {me}: {weights.nbytes:,} bytes of BF16 became {report.bytes:,} of MXFP8, scales and plain tensors; "
    f"{routes.at_receiver} tensors were quantised, {routes.direct} moved as they are"
  )


def main() -> None:
  model = reshard.open_model("demo-moe")
  trainer = reshard.layout("megatron:tp=2", model)
  engine = reshard.layout("vllm:tp=2,quant=mxfp8", model)
  print(*(tensor for tensor in engine.local(0) if "layers.0.self_attn.qkv" in tensor.name), sep="\n")  # data and scales

  groups = reshard.local(RANKS)
  with ThreadPoolExecutor(RANKS) as ranks:
    for line in ranks.map(lambda group: run(group, trainer, engine), groups):
      print(line)


if __name__ == "__main__":
  main()
