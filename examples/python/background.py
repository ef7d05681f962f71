# SPDX-License-Identifier: Apache-2.0
"""A trainer computes and an engine serves while the new weights are on their way.

The trainer's weights have the version in each byte, so that the engine can tell at any moment whether what it serves
is of one version. Ranks are processes that meet in a folder.

  python examples/python/background.py [MODEL] [LAYERS]
"""

import multiprocessing
import sys
import tempfile

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
  published = reshard.PublishedVersion()
  served: list[tuple[int, list[memoryview]]] = []

  def swap(phase: str) -> None:
    """The pause: the engine goes to the copy that has just become whole."""
    if phase == "committed":
      now = published.target_version()
      served[:] = [(now.version, views[now.buffer])]

  lines = []
  with reshard.Session(
    group,
    source=trainer,
    target=engine,
    target_tensors=copies[0],
    back_tensors=copies[1],
    buffering="doubled",
    published=published,
    on_phase=swap,
  ) as session:
    for version in range(1, VERSIONS + 1):
      pending = session.refit_async(version)
      requests = 0
      while not pending.done():
        for of, tensors in list(served):
          expect(tensors, of)
          requests += 1
      report = pending.result()
      expect(served[0][1], version)
      lines.append(
        f"version {version}: rank {group.rank} served {requests} requests meanwhile; "
        f"received {report.bytes:,} bytes, paused for {1e6 * report.pause_seconds:.0f} us"
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


def run(rank: int, folder: str, name: str, layers: int | None) -> None:
  """A rank, which is a process: the first two train, the others serve."""
  model = reshard.open_model(name, layers=layers)
  trainer, engine = reshard.layout("megatron:tp=2", model), reshard.layout("vllm:tp=2,offset=2", model)
  with reshard.join(f"file://{folder}", rank=rank, size=4, transport="shm") as group:
    print((train if rank < 2 else serve)(group, trainer, engine), flush=True)


def main() -> None:
  name = sys.argv[1] if len(sys.argv) > 1 else "demo-moe"
  layers = int(sys.argv[2]) if len(sys.argv) > 2 else None
  processes = multiprocessing.get_context("spawn")
  with tempfile.TemporaryDirectory() as folder:
    ranks = [processes.Process(target=run, args=(rank, folder, name, layers)) for rank in range(4)]
    for rank in ranks:
      rank.start()
    for rank in ranks:
      rank.join()
  if any(rank.exitcode != 0 for rank in ranks):
    sys.exit("a rank failed")
  print("no byte of a later step was in an earlier version")


if __name__ == "__main__":
  main()
