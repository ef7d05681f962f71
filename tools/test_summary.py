#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up JUnit reports and prints "N passed, N failed"; fails on any failure and on no tests at all.

  tools/test_summary.py [--failed] <folder of *.xml>

A test of ctest that has a report of its own (NAME.xml: a shard of a test program) stands for the tests in that report.

--failed says that a runner itself ended badly, which counts as a failure even if no test in its
report failed.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def cases_of(report):
  """The test cases of a report. Raises ParseError."""
  return list(ElementTree.parse(report).iter("testcase"))


def has_failed(case):
  return case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail"


def explains(report, case):
  """True if the case stands for the tests of this report. A case that failed although all of them passed (a leak found
  at the end, say) does not."""
  try:
    return not has_failed(case) or any(has_failed(inner) for inner in cases_of(report))
  except ElementTree.ParseError:
    return False


def count(report, others):
  """(passed, failed, skipped, names of the failed) of one report; an unreadable one is a failure. `others`: the other
  reports by name."""
  try:
    cases = cases_of(report)
  except ElementTree.ParseError as error:
    return 0, 1, 0, [f"{report.name}: {error}"]
  passed, skipped, failed = 0, 0, []
  for case in cases:
    own = others.get(case.get("name"))
    if own and explains(own, case):
      continue
    if has_failed(case):
      failed.append(case.get("name", "?"))
    elif case.find("skipped") is not None or case.get("status") in ("disabled", "notrun"):
      skipped += 1
    else:
      passed += 1
  return passed, len(failed), skipped, failed


def main(arguments):
  runner_failed = "--failed" in arguments
  folder = pathlib.Path([a for a in arguments if a != "--failed"][0])
  totals = [0, 0, 0]
  reports = sorted(folder.glob("*.xml"))
  for report in reports:
    *numbers, names = count(report, {other.stem: other for other in reports if other != report})
    totals = [a + b for a, b in zip(totals, numbers)]
    for name in names:
      print(f"failed: {name}")
  passed, failed, skipped = totals
  if runner_failed and failed == 0:
    print("failed: a test runner ended with an error that no test reports")
    failed = 1
  if passed + failed == 0:
    print("failed: no tests ran")
    failed = 1
  if skipped:
    print(f"skipped: {skipped}")
  print(f"{passed} passed, {failed} failed")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
