# SPDX-License-Identifier: Apache-2.0
"""Law: objects, groups and sessions that are made and closed again leave nothing: neither objects nor memory."""

import os
import subprocess
import sys

from ranks import TIMEOUT

PROGRAM = """
import ctypes, gc, os
import reshard

model = reshard.Model.from_tensors("small", {f"layer.{i}.weight": ((64, 64), "bfloat16") for i in range(40)})

def resident():
  ctypes.CDLL(None).malloc_trim(0)
  with open("/proc/self/statm") as file:
    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def cycle():
  source, target = reshard.layout("fsdp:shard=1", model), reshard.layout("hf", model)
  mine = {tensor.name: bytearray(tensor.bytes) for tensor in source.local(0)}
  theirs = reshard.RankBuffers.allocate(target, [0])
  sides = {"source": source, "source_tensors": mine, "target": target, "target_tensors": theirs}
  with reshard.local(1)[0] as group:
    with reshard.Session(group, **sides, verify="always", on_phase=lambda phase: sides) as session:
      session.refit(1)
      str(session.report), session.peers, session.report.rows()
    try:
      reshard.Session(group, **{**sides, "source_tensors": {}})
    except reshard.NotFoundError:
      pass
  plan = reshard.plan(source, target)
  reshard.InProcessRefit(plan, reshard.RankBuffers(source, {0: mine}), theirs).run()
  str(plan), plan._repr_html_(), plan.traffic, plan.rank(0).locals, reshard.explain(plan)
  reshard.compare_fingerprints(reshard.fingerprints(theirs), reshard.fingerprints(theirs))

for _ in range(WARM):
  cycle()
gc.collect()
objects, memory = len(gc.get_objects()), resident()
for _ in range(200):
  cycle()
gc.collect()
print(len(gc.get_objects()) - objects, resident() - memory)
"""

#: Of one cycle: a session that leaked only its plan would leak some kB each time, one that leaked memory 320.
MOST_BYTES = 2048
if "libasan" in os.environ.get("LD_PRELOAD", ""):
  MOST_BYTES *= 16  # its allocator keeps pages and notes of threads


def test_two_hundred_cycles_leave_no_objects_and_no_memory():
  program = PROGRAM.replace("WARM", "40")
  # AddressSanitizer keeps freed memory, unless it is told not to.
  sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=0:thread_local_quarantine_size_kb=0"
  done = subprocess.run(
    [sys.executable, "-c", program],
    capture_output=True,
    text=True,
    timeout=5 * TIMEOUT,
    env={**os.environ, "ASAN_OPTIONS": sanitizer},
  )
  assert done.returncode == 0, done.stderr
  assert "nanobind: leaked" not in done.stderr, done.stderr
  objects, memory = map(int, done.stdout.split())
  assert objects < 20
  assert memory < 200 * MOST_BYTES
