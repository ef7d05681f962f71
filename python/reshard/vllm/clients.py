# SPDX-License-Identifier: Apache-2.0
"""Ways from a trainer to an engine's control plane. None of them imports vLLM.

A client has the four methods of vLLM's `VLLMWeightSyncClient`, so vLLM's own clients can be passed
instead; the further methods here are used where a client has them.
"""

from __future__ import annotations

import inspect
import json
import urllib.error
import urllib.request
from typing import Any, cast

from reshard.engines.hidden import hidden
from reshard.engines.trainer import Client

__all__ = ["Client", "HttpClient", "LocalClient"]


class HttpClient:
  """A vLLM server (`vllm serve` with VLLM_SERVER_DEV_MODE=1).

  url      such as "http://127.0.0.1:8000".
  timeout  seconds for one call. Must be longer than an update takes.

  Errors: RuntimeError with what the server answered; OSError if it cannot be reached.
  """

  def __init__(self, url: str, timeout: float = 600.0) -> None:
    self.url = url.rstrip("/")
    self.timeout = timeout

  def __repr__(self) -> str:
    return f"HttpClient({self.url!r})"

  def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
    """Calls `init_transfer_engine` on every worker and returns when all have."""
    secret = str(init_info.get("secret", ""))
    self._call("init_weight_transfer_engine", {"init_info": init_info}, secret)

  def start_weight_update(self) -> None:
    """Begins an update on every worker."""
    # 0.24 would take the model apart here; later versions leave that to the back end.
    self._call("start_weight_update", {"is_checkpoint_format": False})

  def start_draft_weight_update(self) -> None:
    """Begins an update of the draft model on every worker. Errors: vLLM before 0.26 has no such route."""
    self._call("start_draft_weight_update", {})

  def update_weights(self, update_info: Any) -> None:
    """Calls `update_weights` on every worker and returns when all have."""
    self._call("update_weights", {"update_info": update_info})

  def finish_weight_update(self, weight_version: str | None = None) -> None:
    """Ends an update on every worker, and forgets what was cached of the old weights.

    Versions before 0.27 ignore `weight_version`.
    """
    self._call("finish_weight_update", {"weight_version": weight_version})
    self._call("reset_prefix_cache", {})

  def update_weight_version(self, new_version: str) -> None:
    """Sets the version that the server reports. Errors: vLLM before 0.27 has no such route."""
    self._call("update_weight_version", {"new_version": new_version})

  def get_weight_version(self) -> str:
    """The version that the server reports. Errors: vLLM before 0.27 has no such route."""
    return str(self._call("weight_info", None)["weight_version"])

  def get_world_size(self) -> int:
    """The number of workers, of all data-parallel replicas."""
    return int(self._call("get_world_size", None)["world_size"])

  def pause(self, mode: str) -> None:
    """Stops generating: "wait" for requests in flight, "abort" or "keep" them. Clears the cache."""
    self._call(f"pause?mode={mode}&clear_cache=true", {})

  def resume(self) -> None:
    """Generates again."""
    self._call("resume", {})

  def _call(self, path: str, body: dict[str, Any] | None, secret: str = "") -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
      f"{self.url}/{path}", data=data, headers={"Content-Type": "application/json"}
    )
    try:
      with urllib.request.urlopen(request, timeout=self.timeout) as answer:
        return cast(dict[str, Any], json.loads(answer.read() or b"{}"))
    except urllib.error.HTTPError as error:
      text = error.read().decode(errors="replace").strip()
      failed = f"{error.code}: {text or error.reason}"
    # A server may repeat what it does not understand.
    raise RuntimeError(f"{self.url}/{path}: {hidden(failed, secret)}")


class LocalClient:
  """A `vllm.LLM` of this process.

  llm  the `vllm.LLM`. Borrowed. Nothing else may call it during an update.
  """

  def __init__(self, llm: Any) -> None:
    self.llm = llm

  def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
    """Calls `init_transfer_engine` on every worker and returns when all have."""
    self.llm.init_weight_transfer_engine({"init_info": init_info})

  def start_weight_update(self) -> None:
    """Begins an update on every worker."""
    parameters = inspect.signature(self.llm.start_weight_update).parameters
    if "is_checkpoint_format" in parameters:  # 0.24
      self.llm.start_weight_update(is_checkpoint_format=False)
    else:
      self.llm.start_weight_update()

  def start_draft_weight_update(self) -> None:
    """Begins an update of the draft model on every worker. Errors: vLLM before 0.26 has no such method."""
    self.llm.start_draft_weight_update()

  def update_weights(self, update_info: Any) -> None:
    """Calls `update_weights` on every worker and returns when all have."""
    self.llm.update_weights({"update_info": update_info})

  def finish_weight_update(self, weight_version: str | None = None) -> None:
    """Ends an update on every worker, and forgets what was cached of the old weights."""
    try:
      self.llm.finish_weight_update(weight_version)
    except TypeError:  # before 0.27
      self.llm.finish_weight_update()
    self.llm.reset_prefix_cache()

  def update_weight_version(self, new_version: str) -> None:
    """Sets the version that outputs carry."""
    self.llm.llm_engine.set_weight_version(new_version)

  def get_weight_version(self) -> str:
    """The version that outputs carry."""
    return str(self.llm.llm_engine.get_weight_version())

  def get_world_size(self) -> int:
    """The number of workers, of all data-parallel replicas."""
    return int(self.llm.llm_engine.vllm_config.parallel_config.world_size_across_dp)
