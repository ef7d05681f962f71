#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Protects: check_words.py reports a forbidden name and a comment that begins badly, at its line, and nothing else."""

import pathlib
import tempfile
import unittest

import check_words

STYLE = """
| say | do not say | source |
| --- | --- | --- |
| `kMax...` | ✓ `kMost...` | |
| `ReplicaMap` | ✓ `Holdings`, `HeldMap`: of files | storage |
| `MaxFlow` | `Flow` | graphs |
"""


class CheckWords(unittest.TestCase):
  def found(self, text, style=STYLE):
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      (root / "docs").mkdir()
      (root / "docs" / "style.md").write_text(style)
      (root / "reshard").mkdir()
      (root / "reshard" / "a.h").write_text(text)
      return check_words.check_tree(root)[0]

  def test_a_forbidden_name_is_reported_with_what_to_say(self):
    self.assertEqual(
      self.found("int a;\n// A Holdings of files.\n"),
      ["reshard/a.h:2: Holdings: say `ReplicaMap` (docs/style.md)"],
    )
    self.assertEqual(len(self.found("constexpr int kMostRanks = 3;\n")), 1)
    self.assertEqual(len(self.found("HeldMap a; Holdings b;\n")), 2)

  def test_other_names_are_not(self):
    self.assertEqual(self.found("class Flow {};  // kAlmostAll, kMaxRanks, HoldingsOf\n"), [])

  def test_a_comment_that_begins_badly_is_reported(self):
    for word in ("Of", "By", "Where", "What"):
      self.assertEqual(len(self.found(f"/// {word} a rank holds.\nint a;\n")), 1)
    self.assertEqual(self.found("/// The bytes\n/// Of a rank. Whatever it holds.\nint a;  ///< of one.\n"), [])
    self.assertEqual(self.found("/// Whatever a rank holds.\nint a;\n"), [])

  def test_a_table_that_forbids_nothing_is_an_error(self):
    with tempfile.TemporaryDirectory() as folder:
      (pathlib.Path(folder) / "docs").mkdir()
      (pathlib.Path(folder) / "docs" / "style.md").write_text("| say | do not say |\n")
      self.assertEqual(check_words.main([folder]), 1)


if __name__ == "__main__":
  unittest.main()
