# SPDX-License-Identifier: Apache-2.0
"""Live updates of vLLM's weights, from a trainer in any layout.

An engine needs one line of configuration, `--weight-transfer-config '{"backend": "reshard"}'`; a
trainer makes a `Trainer` on each of its ranks and calls `update()` after each step. docs/vllm.md.
"""

from reshard.engines.parts import Draft
from reshard.vllm.clients import Client, HttpClient, LocalClient
from reshard.vllm.trainer import TornError, Trainer

__all__ = ["Client", "Draft", "HttpClient", "LocalClient", "TornError", "Trainer", "register"]


def register() -> None:
  """Registers the backend `reshard` in vLLM: the entry point `vllm.general_plugins`.

  vLLM calls it in each of its processes. Does nothing if the backend is registered.
  """
  from reshard.vllm import interface

  interface.register()
