# SPDX-License-Identifier: Apache-2.0
"""Protects: what docs/xfer_api.md says is in Python or in C++ is declared there, and tested."""

import ast
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).parents[2]
ROWS = re.compile(r"^\| (?!name |---)(.*) \|$", re.MULTILINE)


def names(cell):
  """The identifiers at the beginning of a cell's code spans: `Side::local` is both."""
  spans = re.findall(r"`([^`]+)`", cell)
  return [name for span in spans for name in re.findall(r"\w+", re.match(r"[\w:]*", span)[0])]


class Names(unittest.TestCase):
  def setUp(self):
    text = (ROOT / "docs" / "xfer_api.md").read_text()
    self.rows = [[cell.strip() for cell in row.split(" | ")] for row in ROWS.findall(text)]

  def test_a_row_says_what_is_where_and_what_differs(self):
    self.assertGreater(len(self.rows), 10)
    for row in self.rows:
      self.assertEqual(len(row), 4, row)
      self.assertTrue(all(row), row)

  def test_names_in_cpp_are_declared_and_tested(self):
    folder = ROOT / "reshard" / "dtensor"
    declared = (folder / "transfer.h").read_text()
    also = (ROOT / "reshard/model/families/dtensor.h").read_text() + (ROOT / "reshard/refit/session.h").read_text()
    tested = (folder / "transfer_test.cc").read_text()
    found = [name for row in self.rows for name in names(row[2])]
    self.assertGreater(len(found), 10)
    for name in found:
      self.assertTrue(re.search(rf"\b{name}\b", declared + also), f"{name} is not declared")
      if re.search(rf"(struct|class) {name}\b|\b{name}\(", declared):
        self.assertTrue(re.search(rf"\b{name}\b", tested), f"{name} is not tested")

  def test_names_in_python_are_public(self):
    tree = ast.parse((ROOT / "python/reshard/dtensor/__init__.py").read_text())
    (public,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    others = {"verify", "None", "reshard", "vllm", "nemo_rl"}
    found = [name for row in self.rows for name in names(row[1])]
    self.assertGreater(len(found), 5)
    self.assertEqual([name for name in found if name not in {*public, *others}], [])


if __name__ == "__main__":
  unittest.main()
