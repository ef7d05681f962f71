#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Protects: the last line of `make test` counts every test of every report, and hides no failure."""

import contextlib
import io
import pathlib
import tempfile
import unittest

import test_summary

CTEST = """<testsuite name="(empty)" tests="4" failures="1" skipped="1">
 <testcase name="Suite/Test.a/0" status="run"/>
 <testcase name="b" status="fail"><failure message=""/></testcase>
 <testcase name="c" status="notrun"><skipped message="SKIP"/></testcase>
 <testcase name="d" status="run"/>
</testsuite>"""
PYTEST = """<testsuites><testsuite>
 <testcase name="e"/><testcase name="f"><error message="fixture"/></testcase><testcase name="g"/>
</testsuite></testsuites>"""
SHARDS = """<testsuite name="(empty)">
 <testcase name="0" status="run"/>
 <testcase name="1" status="fail"><failure message=""/></testcase>
 <testcase name="alone" status="run"/>
</testsuite>"""
PASSED = '<testsuite><testcase name="a" status="run"/></testsuite>'


class TestSummary(unittest.TestCase):
  def run_main(self, reports, *flags):
    """(exit status, last line) for reports of these texts."""
    with tempfile.TemporaryDirectory() as folder:
      for i, text in enumerate(reports):
        (pathlib.Path(folder) / f"{i}.xml").write_text(text)
      out = io.StringIO()
      with contextlib.redirect_stdout(out):
        status = test_summary.main([*flags, folder])
      return status, out.getvalue().splitlines()[-1]

  def test_reports_are_added_up(self):
    self.assertEqual(self.run_main([CTEST, PYTEST]), (1, "4 passed, 2 failed"))
    self.assertEqual(self.run_main([PASSED, PASSED]), (0, "2 passed, 0 failed"))

  def test_a_shard_counts_as_the_tests_of_its_report(self):
    two = '<testsuites><testcase name="x"/><testcase name="y"/></testsuites>'
    failed = '<testsuites><testcase name="z"/><testcase name="w"><failure/></testcase></testsuites>'
    self.assertEqual(self.run_main([two, failed, SHARDS]), (1, "4 passed, 1 failed"))
    # Shard 1 failed although its tests passed: at its end, say. Then one whose report is cut short.
    self.assertEqual(self.run_main([two, two, SHARDS]), (1, "5 passed, 1 failed"))
    self.assertEqual(self.run_main([two, two[:20], SHARDS])[0], 1)

  def test_no_tests_is_a_failure(self):
    self.assertEqual(self.run_main([]), (1, "0 passed, 1 failed"))
    self.assertEqual(self.run_main(["<testsuite/>"]), (1, "0 passed, 1 failed"))

  def test_a_report_cut_short_is_a_failure(self):
    self.assertEqual(self.run_main([PASSED, CTEST[:60]]), (1, "1 passed, 1 failed"))

  def test_a_runner_that_failed_is_a_failure(self):
    self.assertEqual(self.run_main([PASSED], "--failed"), (1, "1 passed, 1 failed"))


if __name__ == "__main__":
  unittest.main()
