# SPDX-License-Identifier: Apache-2.0
"""The `progress` argument of long operations."""

from collections.abc import Callable
from typing import Any, Protocol

#: Called with the phase and the bytes done so far and in all; False cancels the operation.
ProgressFunction = Callable[[str, int, int], Any]


class _Bar(Protocol):
  total: float | None
  n: float

  def refresh(self) -> object: ...
  def reset(self, total: float | None = None) -> object: ...
  def set_description_str(self, desc: str) -> object: ...
  def close(self) -> object: ...


class TqdmProgress:
  """Shows the bytes of each phase as a bar of tqdm."""

  def __init__(self, bar: _Bar) -> None:
    self._bar = bar
    self._phase = ""

  def __call__(self, phase: str, done: int, total: int) -> None:
    if phase != self._phase or self._bar.total != total:
      self._phase = phase
      self._bar.reset(total)
      self._bar.set_description_str(phase)
    self._bar.n = done
    self._bar.refresh()

  def close(self) -> None:
    self._bar.close()


def _in_notebook() -> bool:
  import sys

  shell = sys.modules.get("IPython")
  if shell is None:
    return False
  instance = shell.get_ipython()
  return instance is not None and type(instance).__name__ == "ZMQInteractiveShell"


def _bar() -> TqdmProgress | None:
  """A bar of tqdm, if it is installed."""
  try:
    from tqdm.auto import tqdm
  except ImportError:
    return None
  return TqdmProgress(tqdm(unit="B", unit_scale=True, leave=False, desc="starting"))


def start(progress: ProgressFunction | bool | None) -> tuple[ProgressFunction | None, Callable[[], None] | None]:
  """What to call with the progress of an operation, and what to call at its end."""
  import sys

  if callable(progress):
    return progress, None
  if progress is not None and not isinstance(progress, bool):
    raise TypeError(f"progress must be a callable, True, False or None, not {type(progress).__name__}")
  if progress is False or (progress is None and not (sys.stderr.isatty() or _in_notebook())):
    return None, None
  bar = _bar()
  if bar is None:
    if progress:
      raise ImportError("progress=True needs tqdm: pip install tqdm")
    return None, None
  return bar, bar.close
