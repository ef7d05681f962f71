#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pages of the site, for Sphinx, of docs/, the README and the sources that they name.

    tools/site/pages.py <folder to make>

Pages keep their place in the repository, so that their links hold. A link to a source leads to a page with its text, one to a
folder to a list of its files. The order is that of docs/README.md, the API behind it: a page for each module of Python, and for
each public header of C++.
"""

import html
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).parents[2]
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s]+)(\))")
LEXERS = {".py": "python", ".h": "cpp", ".cc": "cpp", ".json": "json", ".sh": "bash", ".cmake": "cmake", ".css": "css"}
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
MODULES = (
  "reshard", "reshard.tracing", "reshard.tracing.transformers", "reshard.tracing.vllm", "reshard.hf", "reshard.delta", "reshard.dcp", "reshard.dtensor", "reshard.fleet",
  "reshard.lora", "reshard.check", "reshard.vllm", "reshard.trl",
)  # fmt: skip
DOORS = ("reshard/reshard.h", "reshard/megatron.h", "reshard/dtensor.h")


def public_headers() -> list[str]:
  """The headers that a program may include, and what these include: those that are installed."""
  found: list[str] = []
  wanted = list(DOORS)
  while wanted:
    header = wanted.pop(0)
    if header not in found:
      found.append(header)
      wanted += re.findall(r'^#include "(reshard/[^"]+)"', (ROOT / header).read_text(), re.MULTILINE)
  return found


class Site:
  """The folder of pages, and what is still to be copied there."""

  def __init__(self, folder: pathlib.Path) -> None:
    self.folder = folder
    self.wanted = [pathlib.PurePosixPath(name) for name in PAGES]
    self.wanted += [pathlib.PurePosixPath(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))]
    self.listed = set(self.wanted)
    self.sources: set[str] = set()

  def write(self, path: str, text: str) -> None:
    """A page."""
    target = self.folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)

  def pages(self) -> None:
    """All pages that are Markdown, and what they link to."""
    done: set[pathlib.PurePosixPath] = set()
    while self.wanted:
      page = self.wanted.pop(0)
      if page in done:
        continue
      done.add(page)
      text = self.linked(page, (ROOT / page).read_text())
      orphan = "" if page in self.listed else "---\norphan: true\n---\n"
      self.write(str(page), orphan + text)
    for source in sorted(self.sources):
      self.source(source)

  def linked(self, page: pathlib.PurePosixPath, text: str) -> str:
    """The page with links to pages of the site."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [LINK.sub(lambda m: m[1] + self.target(page, m[2]) + m[3], part) for part in parts[::2]]
    return "".join(parts)

  def target(self, page: pathlib.PurePosixPath, link: str) -> str:
    """What a link becomes. Has what it leads to made."""
    path, _, anchor = link.partition("#")
    if not path or re.match(r"\w+:", link):
      return link
    place = pathlib.PurePosixPath(os.path.normpath(page.parent / path))
    there = ROOT / place
    if there.suffix in (".svg", ".png"):
      (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(there, self.folder / place)
    elif there.suffix == ".md":
      self.wanted.append(place)
    elif there.exists():
      self.sources.add(str(place))
      return f"{os.path.relpath(f'sources/{place}', page.parent)}.md"
    return path + ("#" + anchor if anchor else "")

  def source(self, path: str) -> None:
    """The page of a file, or of a folder."""
    there = ROOT / path
    if there.is_dir():
      names = sorted(p.name + "/" * p.is_dir() for p in there.iterdir() if not p.name.startswith(("__", ".")))
      body = "\n".join(f"* `{name}`" for name in names)
    else:
      text = there.read_text()
      fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
      body = f"{fence}{LEXERS.get(there.suffix, 'text')}\n{text.rstrip()}\n{fence}"
    self.write(f"sources/{path}.md", f"---\norphan: true\n---\n# {path}\n\n{body}\n")

  def api(self) -> None:
    """Pages for autodoc and breathe."""
    for module in MODULES:
      directive = f".. automodule:: {module}\n   :members:\n   :imported-members:\n   :undoc-members:\n   :inherited-members: object\n   :exclude-members: add_note, with_traceback, args\n"
      self.write(f"api/python/{module}.rst", f"{module}\n{'=' * len(module)}\n\n{directive}")
    headers = public_headers()
    for header in headers:
      body = f"{described(header)}.. doxygenfile:: {header}\n   :project: reshard\n"
      self.write(f"api/cpp/{header}.rst", f"{header}\n{'=' * len(header)}\n\n{body}")
    self.write("api/python/index.rst", tree("Python", "From the docstrings.", list(MODULES)))
    about = "From the headers that are installed. A program includes the first; the others are what it reaches."
    self.write("api/cpp/index.rst", tree("C++", about, headers))

  def index(self) -> None:
    """The first page: what reshard is, and all pages in the order of docs/README.md."""
    readme = (ROOT / "README.md").read_text()
    intro = self.linked(pathlib.PurePosixPath("README.md"), readme.partition("\n```console")[0])
    out = [intro, "", "[Ten minutes](docs/start.md) lead from the installation to a refit in a program of your own.", ""]
    order = (ROOT / "docs/README.md").read_text()
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", order, re.MULTILINE | re.DOTALL):
      pages = [f"docs/{page.removesuffix('.md')}" for page in re.findall(r"^\d+\. \[[^\]]*\]\(([^)]+)\)", body, re.MULTILINE)]
      if "docs/start" in pages:
        pages += ["README", "docs/README"]
      if "docs/adr/README" in pages:
        pages += sorted(f"docs/adr/{p.stem}" for p in (ROOT / "docs/adr").glob("[0-9]*.md"))
        pages += ["CONTRIBUTING", "CHANGELOG", "SECURITY"]
      out += toctree(title, pages)
    out += toctree("API", ["api/python/index", "api/cpp/index"])
    self.write("index.md", "\n".join(out) + "\n")


def described(header: str) -> str:
  """What a header says of itself, above its namespace, as it is written."""
  found = re.search(r"((?:^///.*\n)+)^namespace ", (ROOT / header).read_text(), re.MULTILINE)
  lines = [line.removeprefix("///").removeprefix(" ") for line in found[1].splitlines()] if found else []
  return "::\n\n" + "".join(f"   {line}".rstrip() + "\n" for line in lines) + "\n" if lines else ""


def toctree(caption: str, pages: list[str]) -> list[str]:
  return ["", "```{toctree}", f":caption: {html.escape(caption)}", ":maxdepth: 1", "", *pages, "```"]


def tree(title: str, text: str, pages: list[str]) -> str:
  entries = "\n".join(f"   {page}" for page in pages)
  return f"{title}\n{'=' * len(title)}\n\n{text}\n\n.. toctree::\n   :maxdepth: 1\n\n{entries}\n"


if __name__ == "__main__":
  if len(sys.argv) != 2:
    raise SystemExit(__doc__)
  site = Site(pathlib.Path(sys.argv[1]))
  site.pages()
  site.api()
  site.index()
