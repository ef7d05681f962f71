# SPDX-License-Identifier: Apache-2.0
"""Protects: every block of Python in docs/python.md and README.md runs, in order, as one program in an empty folder."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("page", "number"), [("docs/python.md", 6), ("README.md", 2)])
def test_the_blocks_of_the_page_run(page, number, tmp_path):
  text = (ROOT / page).read_text()
  blocks = list(BLOCK.finditer(text))
  assert len(blocks) >= number
  # Each block keeps its line numbers, so that an error names the line of the page.
  program = "".join(
    f"exec(compile({chr(10) * text.count(chr(10), 0, block.start(1)) + block.group(1)!r}, {page!r}, 'exec'))\n"
    for block in blocks
  )
  (tmp_path / "page.py").write_text(program)
  command = [sys.executable, "page.py"]
  result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
  assert result.returncode == 0, result.stderr[-3000:]
