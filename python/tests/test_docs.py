# SPDX-License-Identifier: Apache-2.0
"""Protects: every block of Python in docs/python.md runs, in order, as one program in an empty folder."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import emulated

PAGE = pathlib.Path(__file__).parents[2] / "docs/python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("gpu", ["no GPU", "an emulated GPU"])
def test_the_blocks_of_the_page_run(gpu, tmp_path):
  env = {} if gpu == "no GPU" else emulated.environment(tmp_path)
  text = PAGE.read_text()
  blocks = list(BLOCK.finditer(text))
  assert len(blocks) > 5
  # Each block keeps its line numbers, so that an error names the line of the page.
  program = "".join(
    f"exec(compile({chr(10) * text.count(chr(10), 0, block.start(1)) + block.group(1)!r}, 'docs/python.md', 'exec'))\n"
    for block in blocks
  )
  (tmp_path / "page.py").write_text(program)
  command = [sys.executable, "page.py"]
  result = subprocess.run(command, cwd=tmp_path, env=os.environ | env, capture_output=True, text=True, check=False, timeout=600)
  assert result.returncode == 0, result.stderr[-3000:]
  if env:
    assert " cuda:0 cuda:0\n" in result.stdout
