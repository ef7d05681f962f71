# SPDX-License-Identifier: Apache-2.0
"""Live updates of an engine with data-parallel replicas."""


def test_each_data_parallel_replica_gets_the_weights(server_of, checkpoints, reference, trainer):
  server = server_of("llama", data_parallel_size=2)
  b = checkpoints["llama", "b"]
  generated, checksums = reference(b, tensor_parallel_size=1)
  ranks = trainer(server, 2, "megatron:tp=2", 2, checkpoints["llama", "a"], route="local")
  ranks.update(b)
  of_replica = {}
  for name, digest in server.checksums().items():
    replica, _, rest = name.partition(":")
    of_replica.setdefault(replica, {})["dp0:" + rest] = digest
  assert of_replica == {"dp0": checksums, "dp1": checksums}
  assert server.generate() == generated
  ranks.close()
