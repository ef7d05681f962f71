# SPDX-License-Identifier: Apache-2.0
"""Live updates of SGLang's weights, from a trainer in any layout. docs/sglang.md.

An engine needs one argument, `--custom-weight-loader reshard.sglang.load`; a trainer makes a
`Trainer` on each of its ranks and calls `update()` after each step. Does not import SGLang.
"""

from reshard.engines.link import TornError
from reshard.engines.parts import Draft
from reshard.sglang.client import EngineClient
from reshard.sglang.trainer import Adapter, Trainer
from reshard.sglang.worker import load

__all__ = ["Adapter", "Draft", "EngineClient", "TornError", "Trainer", "load"]
