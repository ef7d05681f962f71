# SPDX-License-Identifier: Apache-2.0
"""A rank of SkyRL's policy, with a stand-in for its worker's base class. Obeys the lines of driver.py."""

import asyncio
import sys
from types import SimpleNamespace

import driver
import patches
import reshard
from trainer import Fsdp

args = driver.options()
args.layout = reshard.layout(args.text, reshard.open_model(args.model))
held = Fsdp(args)


class Base:
  """What FSDPPolicyWorkerBase has: self.model wraps the module."""

  def __init__(self, module):
    self.model = SimpleNamespace(model=module)


class Worker(patches.names_of("SkyRL")["ReshardWeights"], Base):
  pass


worker = Worker(held.module)
client = SimpleNamespace(server_urls=[args.server])
asyncio.run(worker.init_weight_sync_state(client, None))
print("ready", flush=True)
for line in sys.stdin:
  held.load(*line.split()[1:])
  asyncio.run(worker.broadcast_to_inference_engines(client, None))
  print("updated", flush=True)
