# SPDX-License-Identifier: Apache-2.0
"""Objects as text."""

from reshard import _core


def model_text(model: _core.Model) -> str:
  return repr(model)


def layout_text(layout: _core.Layout) -> str:
  return repr(layout)
