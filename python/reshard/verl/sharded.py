# SPDX-License-Identifier: Apache-2.0
"""The back end `reshard` in the place of verl's `delta_sharded`, whose actors hand over their engine.

    checkpoint_engine.backend=delta_sharded
    checkpoint_engine.custom_backend_module=reshard.verl.sharded

verl gathers each tensor before it calls other back ends; this one sends the shards of FSDP2 engines
as they are. Other engines are gathered. docs/verl.md says what verl demands of a rollout then.
"""

from __future__ import annotations

from reshard.verl import ReshardCheckpointEngine
from verl.checkpoint_engine.base import CheckpointEngineRegistry

__all__ = ["ReshardCheckpointEngine"]

CheckpointEngineRegistry.register("delta_sharded")(ReshardCheckpointEngine)
