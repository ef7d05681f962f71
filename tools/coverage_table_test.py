#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Protects: `make coverage` adds up each room by itself, and fails when one of them is below the bound."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import coverage_table


def counted(name, covered, total):
  return {
    "filename": name,
    "line_covered": covered,
    "line_total": total,
    "branch_covered": covered // 2,
    "branch_total": total,
  }


class CoverageTable(unittest.TestCase):
  def run_main(self, *files):
    """(exit status, printed lines) for a summary of these files."""
    with tempfile.TemporaryDirectory() as folder:
      summary = pathlib.Path(folder) / "summary.json"
      summary.write_text(json.dumps({"files": list(files)}))
      out = io.StringIO()
      with contextlib.redirect_stdout(out):
        status = coverage_table.main([str(summary)])
      return status, [" ".join(line.split()) for line in out.getvalue().splitlines()]

  def test_a_room_is_the_sum_of_its_folders(self):
    status, lines = self.run_main(
      counted("reshard/exec/a.cc", 50, 50), counted("reshard/exec/direct/b.cc", 40, 50), counted("cli/c.cc", 10, 10)
    )
    self.assertEqual(status, 0)
    self.assertIn("reshard/exec 100 10 90.0 % 45.0 %", lines)
    self.assertIn("reshard/exec/direct 50 10 80.0 % 40.0 %", lines)
    self.assertIn("cli 10 0 100.0 % 50.0 %", lines)
    self.assertEqual(lines[-1], "all 110 10 90.9 % 45.4 %")

  def test_a_room_below_the_bound_fails_whatever_the_others_have(self):
    status, lines = self.run_main(counted("reshard/base/a.cc", 8999, 10000), counted("cli/c.cc", 90000, 90000))
    self.assertEqual(status, 1)
    self.assertEqual(lines[-1], "coverage: below 90 % of lines: reshard/base (89.9 %)")

  def test_a_header_beside_the_rooms_is_no_room_of_its_own_name(self):
    status, lines = self.run_main(counted("reshard/reshard.h", 1, 1), counted("reshard/base/a.cc", 1, 1))
    self.assertEqual(status, 0)
    self.assertIn("reshard 1 0 100.0 % 0.0 %", lines)

  def test_no_files_is_a_failure(self):
    status, lines = self.run_main()
    self.assertEqual(status, 1)
    self.assertEqual(lines[-1], "coverage: no file was counted")


if __name__ == "__main__":
  unittest.main()
