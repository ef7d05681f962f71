# SPDX-License-Identifier: Apache-2.0
"""What goes on beside a trainer: calls of its engine, and updates in the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, cast

import reshard

__all__ = ["Call", "PendingUpdate"]

T = TypeVar("T")


class Call(Generic[T]):
  """A call in a thread of its own: workers join and receive while it runs."""

  def __init__(self, call: Callable[[], T], ended: Callable[[Call[T]], None]) -> None:
    self.error: BaseException | None = None
    self._value: T | None = None
    self._thread = threading.Thread(target=self._run, args=(call, ended), daemon=True)
    self._thread.start()

  def _run(self, call: Callable[[], T], ended: Callable[[Call[T]], None]) -> None:
    try:
      self._value = call()
    except BaseException as error:  # noqa: BLE001 - result() raises it
      self.error = error
    ended(self)

  def result(self) -> T:
    """Waits, and raises what the call raised."""
    self._thread.join()
    if self.error is not None:
      raise self.error
    return cast(T, self._value)

  def raise_instead(self, error: BaseException) -> None:
    """If the call has failed, or fails now that the group has ended: its error, which says why."""
    self._thread.join(timeout=5.0)
    if self.error is not None:
      raise self.error from error


class PendingUpdate:
  """An update in the background, from a trainer's `update_async()`. One thread at a time.

      pending = trainer.update_async()     # on every rank; the engine goes on serving
      pending.wait_sources_free()          # then the tensors may be written
      ...
      report = pending.result()            # the engine takes the weights: only here does it pause

  version  that the engine will be at.
  """

  def __init__(self, version: int, refit: reshard.PendingRefit, take: Callable[[], reshard.SessionReport]) -> None:
    self.version = version
    self._refit = refit
    self._take = take
    self._report: reshard.SessionReport | None = None

  def sources_free(self) -> bool:
    """True once no worker reads this rank's tensors, so that they may be written: at once with `snapshot=True`. Never waits."""
    return self._refit.sources_free()

  def wait_sources_free(self, timeout: float | None = None) -> bool:
    """Waits for that, at most `timeout` seconds. False if they are not free then."""
    return self._refit.wait_sources_free(timeout)

  def arrived(self) -> bool:
    """True once every worker has the weights, in memory beside its model's, or the transfer has failed. Never waits."""
    return self._refit.done()

  def wait_arrived(self, timeout: float | None = None) -> bool:
    """Waits for that, at most `timeout` seconds. False if it is not so then."""
    return self._refit.wait(timeout)

  def result(self) -> reshard.SessionReport:
    """Collective over the trainer. Waits until the weights have arrived, and has every worker put them into its model.

    Returns when every worker uses them. Errors: as `update()`'s. Until this is called, the engine keeps its old weights.
    """
    if self._report is None:
      self._refit.wait()
      self._refit.result()
      self._report = self._take()
    return self._report

  def __await__(self) -> Generator[Any, None, reshard.SessionReport]:
    return asyncio.to_thread(self.result).__await__()

  def __repr__(self) -> str:
    state = "taken" if self._report is not None else "arrived" if self.arrived() else "on its way"
    return f"<PendingUpdate to version {self.version}: {state}>"
