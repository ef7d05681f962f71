# SPDX-License-Identifier: Apache-2.0
"""The blocks of Python of docs/patch_points.md."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/patch_points.md"


def names_of(framework):
  """What the blocks below a heading define."""
  text = PAGE.read_text().partition(f"\n## {framework}\n")[2].partition("\n## ")[0]
  names = {}
  for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
    exec(compile(block, f"{PAGE.name}: {framework}", "exec"), names)
  return names
