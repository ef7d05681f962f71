# SPDX-License-Identifier: Apache-2.0
"""A trainer computes and an engine serves while the new weights are on their way.

The trainer's weights have the version in each byte, so that the engine can tell at any moment whether what it serves
is of one version. Ranks are threads of this process; each makes the same calls as a process of its own would.

  python examples/python/background.py [MODEL] [LAYERS]
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import reshard

VERSIONS = 3


def train(group: reshard.ProcessGroup, trainer: reshard.Layout, engine: reshard.Layout) -> str:
  weights = reshard.RankBuffers.allocate(trainer, [group.rank])
  tensors = [memoryview(tensor.raw()).cast("B") for tensor in weights.tensors(group.rank).values()]
  lines = []
  with reshard.Session(
    group, source=trainer, source_tensors=weights, target=engine, buffering="doubled", snapshot=True
  ) as session:
    for version in range(1, VERSIONS + 1):
      write(tensors, version)
      pending = session.refit_async(version)  # takes a snapshot, so that the weights are free
      steps = 0
      while not pending.done():
        steps += 1
        write(tensors, 100 + steps % 100)  # optimiser steps, which no engine may see
      report = pending.result()
      lines.append(
        f"version {version}: rank {group.rank} took a snapshot in {1e3 * report.snapshot_seconds:.1f} ms, "
        f"and wrote its weights {steps} times while {report.sent:,} bytes were sent in {1e3 * report.move_seconds:.1f} ms"
      )
  return "\n".join(lines)


def serve(group: reshard.ProcessGroup, trainer: reshard.Layout, engine: reshard.Layout) -> str:
  copies = [reshard.RankBuffers.allocate(engine, [group.rank]) for _ in range(2)]
  views = [[memoryview(t.raw()).cast("B") for t in copy.tensors(group.rank).values()] for copy in copies]
  lines = []
  with reshard.Session(
    group,
    source=trainer,
    target=engine,
    target_tensors=copies[0],
    back_tensors=copies[1],
    buffering="doubled",
  ) as session:
    for version in range(1, VERSIONS + 1):
      pending = session.refit_async(version)
      requests = 0
      while not pending.done():
        now = session.target_version()
        if now.whole:
          requests += 1
          expect(views[now.buffer], now.version)
      report = pending.result()
      expect(views[session.target_version().buffer], version)
      lines.append(
        f"version {version}: rank {group.rank} served {requests} requests meanwhile; "
        f"received {report.bytes:,} bytes, pause {1e6 * report.pause_seconds:.1f} us"
      )
  return "\n".join(lines)


def write(tensors: list[memoryview], value: int) -> None:
  for tensor in tensors:
    tensor[:] = bytes([value]) * len(tensor)


def expect(tensors: list[memoryview], version: int) -> None:
  """A request: bytes of each tensor must be of the version. The last ones may be padding."""
  for tensor in tensors:
    found = {tensor[0], tensor[len(tensor) // 4], tensor[len(tensor) // 2]}
    if found != {version}:
      raise SystemExit(f"a tensor of version {version} has bytes {found}")


def main() -> None:
  name = sys.argv[1] if len(sys.argv) > 1 else "demo-moe"
  model = reshard.open_model(name, layers=int(sys.argv[2])) if len(sys.argv) > 2 else reshard.open_model(name)
  trainer = reshard.layout("megatron:tp=2", model)
  engine = reshard.layout("vllm:tp=2,offset=2", model)
  groups = reshard.local(4)
  with ThreadPoolExecutor(4) as ranks:
    bodies = [train, train, serve, serve]
    for lines in ranks.map(lambda group: bodies[group.rank](group, trainer, engine), groups):
      print(lines)
  print("no byte of a later step was in an earlier version")


if __name__ == "__main__":
  main()
