# SPDX-License-Identifier: Apache-2.0
"""A `sglang.Engine` as what a trainer needs of an engine. Does not import SGLang."""

from __future__ import annotations

import json
from typing import Any

import reshard
import torch

__all__ = ["INIT", "LEAVE", "LOADER", "UPDATE", "EngineClient"]

#: The path under which an engine knows the loader.
LOADER = "reshard.sglang.load"
#: Names of the tensors that carry text to the loader.
INIT, UPDATE, LEAVE = "reshard.init", "reshard.update", "reshard.leave"


class EngineClient:
  """An engine's update calls as what `Trainer` needs of an engine.

  engine   a `sglang.Engine`, or anything with its methods begin_weight_update(selector),
           update_weights_from_tensor(named_tensors, load_format, flush_cache) and
           end_weight_update(). Borrowed. Nothing else may call it during an update.
  workers  its processes, one for each GPU; None: as its `server_args` say.
  drafts   an update is one of the engine's draft models, too.

  Errors: RuntimeError with the engine's message.
  """

  def __init__(self, engine: Any, workers: int | None = None, drafts: bool = False) -> None:
    self.engine = engine
    self._workers = workers
    self._selector = "all" if drafts else "target"

  def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
    """Has every worker begin to join, or take the trainer that has joined."""
    try:
      self.start_weight_update()
    except RuntimeError:  # a trainer that died has left it open
      self.finish_weight_update()
      self.start_weight_update()
    try:
      self._load(INIT, init_info, flush_cache=False)
    finally:
      self.finish_weight_update()

  def start_weight_update(self) -> None:
    """Begins an update of the engine's model, and of draft models if the trainer has one."""
    _checked(self.engine.begin_weight_update(self._selector))

  def update_weights(self, update_info: Any) -> None:
    """Has every worker receive an update, and forgets what was cached of the old weights; or begin to, in the background."""
    self._load(UPDATE, update_info, flush_cache=not update_info.get("background"))

  def finish_weight_update(self, weight_version: str | None = None) -> None:
    """Ends an update, and tells the engine the version: "weight_version" of its answers from now on."""
    _checked(self.engine.end_weight_update())
    tell = getattr(getattr(self.engine, "tokenizer_manager", None), "update_weight_version", None)
    if weight_version is not None and tell is not None:
      from sglang.srt.managers.io_struct import UpdateWeightVersionReqInput

      said = UpdateWeightVersionReqInput(new_version=weight_version, abort_all_requests=False)
      self.engine.loop.run_until_complete(tell(said))

  def leave(self, job: str) -> None:
    """Has every worker leave the trainer of this name, so that it need not wait for them."""
    self.start_weight_update()
    try:
      self._load(LEAVE, {"job": job}, flush_cache=False)
    finally:
      self.finish_weight_update()

  def get_world_size(self) -> int:
    """The number of workers."""
    if self._workers is not None:
      return self._workers
    options = self.engine.server_args
    if options.dp_size > 1:
      raise reshard.UnsupportedError("SGLang updates no engine with dp_size > 1 from tensors")
    return int(options.tp_size * options.pp_size)

  def _load(self, name: str, said: dict[str, Any], flush_cache: bool) -> None:
    text = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
    _checked(
      self.engine.update_weights_from_tensor(
        [(name, text)], load_format=LOADER, flush_cache=flush_cache
      )
    )


def _checked(answer: Any) -> None:
  if isinstance(answer, tuple) and not answer[0]:
    raise RuntimeError(f"SGLang: {answer[1]}")
