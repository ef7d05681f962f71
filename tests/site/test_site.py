# SPDX-License-Identifier: Apache-2.0
"""Protects: the site has what it says it has, whole, and can be read on a desktop and on a phone.

`make site-test` builds it first; RESHARD_SITE is its folder."""

import contextlib
import functools
import html.parser
import importlib
import inspect
import os
import pathlib
import re
import sys
import urllib.parse

import pytest

import browser

ROOT = pathlib.Path(__file__).parents[2]
SITE = pathlib.Path(os.environ.get("RESHARD_SITE", ROOT / "build/site")).resolve()
SHOTS = SITE.parent / "site-shots"
WIDTHS = {"desktop": 1280, "phone": 390}
SHOWN = ("index", "docs/start", "docs/trl", "docs/performance", "api/python/reshard", "api/cpp/reshard/refit/session.h")
sys.path.insert(0, str(ROOT / "tools/site"))
import pages as made

pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: make site")


class Page(html.parser.HTMLParser):
  """Links, anchors, pictures and blocks of code of a page."""

  def __init__(self, text):
    super().__init__()
    self.links, self.ids, self.pictures, self.blocks, self._pre = [], set(), [], [], 0
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    of = dict(attributes)
    self.ids |= {of[key] for key in ("id", "name") if of.get(key)}
    if tag == "a" and of.get("href"):
      self.links.append(of["href"])
    if tag == "img":
      self.pictures.append(of["src"])
    if tag == "pre":
      self._pre += 1
      self.blocks.append("")

  def handle_endtag(self, tag):
    self._pre -= tag == "pre"

  def handle_data(self, data):
    if self._pre:
      self.blocks[-1] += data


@functools.cache
def page(path):
  return Page(path.read_text())


def all_pages():
  return sorted(SITE.rglob("*.html"))


def broken(path, link):
  """What is wrong with a link of a page, or None."""
  address = urllib.parse.urlsplit(link)
  if address.scheme or address.netloc:
    return None
  target = (path.parent / urllib.parse.unquote(address.path)).resolve() if address.path else path
  if not target.is_file():
    return "no such file"
  anchor = urllib.parse.unquote(address.fragment)
  return "no such place" if anchor and target.suffix == ".html" and anchor not in page(target).ids else None


def test_every_link_leads_somewhere():
  wrong = [f"{path.relative_to(SITE)}: {link}: {why}" for path in all_pages() for link in page(path).links if (why := broken(path, link))]
  assert len(all_pages()) > 150 and wrong == []


def test_broken_links_are_found():
  index = SITE / "index.html"
  assert broken(index, "none.html") and broken(index, "docs/start.html#none") and broken(index, "#none")
  assert not broken(index, "docs/start.html#plan") and not broken(index, "https://example.org/none")


def test_every_page_of_docs_is_there_with_its_blocks_and_pictures():
  missing = []
  for source in sorted((ROOT / "docs").rglob("*.md")):
    there = page(SITE / source.relative_to(ROOT).with_suffix(".html"))
    text = source.read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = {block.strip() for block in there.blocks}
    missing += [f"{source.name}: {block[:60]!r}" for block in blocks if block.strip() not in shown]
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    missing += [f"{source.name}: {p}" for p in pictures if pathlib.Path(p).name not in {pathlib.Path(q).name for q in there.pictures}]
  assert missing == []


def test_pages_are_in_the_order_of_the_list():
  order = re.findall(r"^\d+\. \[[^\]]*\]\(([^)]+)\.md\)", (ROOT / "docs/README.md").read_text(), re.MULTILINE)
  links = [link for link in page(SITE / "index.html").links if link.startswith("docs/")]
  assert order[0] == "start" and list(dict.fromkeys(link for link in links if link[5:-5] in order))[: len(order)] == [f"docs/{name}.html" for name in order]


def members(cls):
  """Public names of a class and of its bases in reshard."""
  for base in cls.__mro__:
    if (base.__module__ or "").startswith("reshard"):
      yield from (name for name in vars(base) if not name.startswith("_") and not name.endswith("Iterator"))


def test_everything_public_of_python_has_an_entry():
  missing = []
  for module in made.MODULES:
    try:
      there = importlib.import_module(module)
    except ModuleNotFoundError:  # of a framework
      assert f"module-{module}" in page(SITE / f"api/python/{module}.html").ids
      continue
    ids = page(SITE / f"api/python/{module}.html").ids
    for name in there.__all__:
      thing = getattr(there, name)
      if inspect.isclass(thing) or inspect.isroutine(thing) or hasattr(thing, "__nb_signature__"):
        missing += [f"{module}.{name}"] * (f"{module}.{name}" not in ids)
      if inspect.isclass(thing):
        missing += [f"{module}.{name}.{m}" for m in members(thing) if f"{module}.{name}.{m}" not in ids]
  assert missing == []


def test_signatures_and_types_come_from_the_extension():
  text = (SITE / "api/python/reshard.html").read_text()
  session = re.sub(r"<[^>]+>", "", text.partition('id="reshard.Session"')[2][:6000])
  assert "group: ProcessGroup" in session and "buffering: Literal['in_place', 'doubled'] = 'in_place'" in session
  digest = re.sub(r"<[^>]+>", "", text.partition('id="reshard.Session.closed"')[2][:600])
  assert "bool" in digest


def test_every_public_header_has_a_page_with_its_classes():
  missing = []
  for header in made.public_headers():
    text = (SITE / f"api/cpp/{header}.html").read_text()
    shown = re.sub(r"<[^>]+>", "", text)
    source = (ROOT / header).read_text()
    classes = re.findall(r"^(?:class|struct) (\w+)(?: final)?(?: :[^{;]*)? \{$", source, re.MULTILINE)
    missing += [f"{header}: {name}" for name in classes if name not in shown]
  assert len(made.public_headers()) > 50 and missing == []


@pytest.fixture(scope="module")
def chromium():
  if browser.chromium() is None:
    pytest.skip("no Chromium: tools/install_deps.sh browser")
  with contextlib.closing(browser.Browser(SITE)) as made_browser:
    yield made_browser


def test_pages_load_whole_and_fit_the_screen(chromium):
  pages = [str(path.relative_to(SITE)) for path in all_pages() if path.relative_to(SITE).parts[0] != "sources"]
  seen = chromium.look(pages, WIDTHS.values())
  assert len(seen) == len(pages) * len(WIDTHS) > 200
  wrong = [one for one in seen if one["wrong"] or one["broken"] or one["over"] > 0 or not one["title"]]
  assert wrong == []


def test_what_is_wrong_with_a_page_is_seen(chromium):
  bad = SITE / "bad.html"
  bad.write_text('<html><head></head><title>bad</title><img src="none.png"><div style="width:2000px">wide</div><script>none()</script>')
  try:
    (one,) = chromium.look(["bad.html"], [390])
  finally:
    bad.unlink()
  assert one["over"] > 1000 and len(one["broken"]) == 1 and any("none is not defined" in what for what in one["wrong"])


@pytest.mark.parametrize(("word", "least"), [("quantised", 10), ("install", 3), ("refit_async", 1), ("InProcessRefit", 2)])
def test_the_search_finds_pages(chromium, word, least):
  (one,) = chromium.look([f"search.html?q={word}"], [390])
  assert one["found"] >= least and not one["wrong"]


def test_pictures_of_pages_are_made(chromium):
  SHOTS.mkdir(exist_ok=True)
  for name in SHOWN:
    for screen, width in WIDTHS.items():
      path = SHOTS / f"{name.replace('/', '_')}-{screen}.png"
      path.unlink(missing_ok=True)
      chromium.picture(f"{name}.html", width, path)
      assert path.stat().st_size > 10_000
