# SPDX-License-Identifier: Apache-2.0
"""Every link of the documentation resolves, and every file that it names in backquotes exists.

Checked in README.md, CONTRIBUTING.md and docs/**/*.md: relative links, with the heading behind a `#`; paths such as
`reshard/io/open_model.h`, from the root, from reshard/ or from the page's folder, `*` allowed; and bare names of
C++ sources such as `planner.h`. docs/README.md, the reading order, lists every page once. Code blocks are skipped: other
tests run them.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ("reshard", "cli", "python", "bench", "tests", "examples", "tools", "cmake", "docs")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)+/?")
SOURCE = re.compile(r"[\w-]+\.(h|cc|inc)")
SUFFIXES = (".h", ".cc", ".inc", ".py", ".sh", ".cmake", ".md", ".json", ".txt")


def pages():
  return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(text):
  """The text without its code blocks."""
  return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
  """The anchors that GitHub gives the headings of a page."""
  headings = re.findall(r"^#+ +(.+)$", prose(text), re.MULTILINE)
  return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_link(page, target):
  """What is wrong with a link in `page`, or None."""
  if re.match(r"\w+:", target):
    return None
  path, _, anchor = target.partition("#")
  to = (page.parent / path).resolve() if path else page
  if not to.exists():
    return f"link to {target}: no such file"
  if anchor and anchor not in anchors(to.read_text()):
    return f"link to {target}: {to.name} has no such heading"
  return None


def missing_file(page, quoted, names):
  """What is wrong with a quoted text if it names a file of the repository, or None."""
  if SOURCE.fullmatch(quoted):
    return None if quoted in names else f"`{quoted}`: no source has this name"
  if not PATH.fullmatch(quoted):
    return None
  first = quoted.split("/")[0]
  rooms = {p.name for p in (ROOT / "reshard").iterdir() if p.is_dir()}
  if first not in FOLDERS and not (first in rooms and quoted.endswith(SUFFIXES)):
    return None
  if "*" in quoted.split("/")[-1]:  # a pattern of names: the folder alone must be there
    quoted = quoted.rpartition("/")[0]
  places = (ROOT, ROOT / "reshard", page.parent)
  if any(any(place.glob(quoted.rstrip("/"))) for place in places):
    return None
  return f"`{quoted}`: no such file or folder"


def wrong(page, text, names):
  text = prose(text)
  found = [broken_link(page, target) for target in LINK.findall(text)]
  found += [missing_file(page, quoted, names) for quoted in QUOTED.findall(text)]
  return [f"{page.relative_to(ROOT)}: {what}" for what in found if what]


class Links(unittest.TestCase):
  names = {p.name for top in FOLDERS for p in (ROOT / top).rglob("*") if p.suffix in (".h", ".cc", ".inc")}

  def test_all_resolve(self):
    found = [line for page in pages() for line in wrong(page, page.read_text(), self.names)]
    self.assertFalse(found, "\n" + "\n".join(found))

  def test_the_reading_order_lists_every_page_once(self):
    docs = ROOT / "docs"
    listed = re.findall(r"^\d+\. \[[^\]]*\]\(([^)]+)\)", (docs / "README.md").read_text(), re.MULTILINE)
    there = [p.name for p in docs.glob("*.md") if p.name != "README.md"] + ["adr/README.md"]
    self.assertEqual(sorted(there), sorted(listed))
    decisions = re.findall(r"\]\((\d+-[^)]+)\)", (docs / "adr" / "README.md").read_text())
    self.assertEqual(sorted(p.name for p in (docs / "adr").glob("[0-9]*.md")), sorted(decisions))

  def test_broken_ones_are_found(self):
    page = ROOT / "docs" / "design.md"
    for text in ("[a](none.md)", "[a](style.md#none)", "`reshard/none.h`", "`io/none.h`", "`none.cc`", "`docs/none`"):
      self.assertEqual(1, len(wrong(page, text, self.names)), text)
    for text in ("[a](style.md#names)", "[a](https://x.y)", "`reshard/*/planner.h`", "`read/write`", "`planner.h`"):
      self.assertEqual([], wrong(page, text, self.names), text)


if __name__ == "__main__":
  unittest.main()
