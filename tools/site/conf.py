# SPDX-License-Identifier: Apache-2.0
"""Sphinx: the site of tools/site/build.sh. Pages are made by tools/site/pages.py."""

import inspect
import os
import re
import sys

sys.path.insert(0, os.path.dirname(__file__))
from pygments.lexers.special import TextLexer
from signatures import property_type, signature_of
from sphinx.ext.autodoc import ClassDocumenter, FunctionDocumenter, ModuleDocumenter

project = "reshard"
author = "The reshard developers"
version = release = os.environ["RESHARD_SITE_VERSION"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "breathe", "sphinx_copybutton"]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns: list[str] = []

html_theme = "furo"
html_title = f"reshard {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = [os.path.join(os.path.dirname(__file__), "static")]
html_css_files = ["reshard.css"]
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
pygments_style, pygments_dark_style = "friendly", "monokai"
highlight_language = "text"
copybutton_prompt_text, copybutton_exclude = r"\$ ", ".linenos, .go"

myst_heading_anchors = 6
myst_enable_extensions: list[str] = []
myst_links_external_new_tab = False

breathe_projects = {"reshard": os.environ["RESHARD_SITE_XML"]}
breathe_default_project = "reshard"
breathe_show_include = False
# Each page of a header names the namespaces that it declares something in; bytes is a type, and an attribute of many classes.
suppress_warnings = ["duplicate_declaration.cpp", "myst.header", "ref.python"]

autodoc_use_legacy_class_based = True  # the other one drops signatures that an event gives to a class
autodoc_member_order = "bysource"
autodoc_mock_imports = ["vllm", "verl", "nemo_rl", "sglang", "trl"]
autodoc_typehints = "signature"
autoclass_content = "class"
python_maximum_signature_line_length = 90


def literal(app, what, name, thing, options, lines):
  """Docstrings are shown as they are written: their columns carry meaning."""
  kind = property_type(thing) if what in ("property", "attribute") else ""
  text = [line.rstrip() for line in lines]
  # nanobind puts the signatures before the text; Sphinx takes one of them for its own.
  while text and re.match(r"(\d+\. )?(``)?\w*\(.*\) -> |Overloaded function|$", text[0]):
    text.pop(0)
  lines[:] = [f"*{kind}*", ""] if kind else []
  if text:
    lines += ["::", "", *(f"   {line}" for line in text), ""]


def signature(app, what, name, thing, options, given, returns):
  """The signatures of an extension made with nanobind."""
  if what != "class" or not inspect.isclass(thing):
    return None
  return signature_of(thing)


class ExtensionFunction(FunctionDocumenter):
  """A function of nanobind, which is of a type of its own."""

  objtype = "extensionfunction"
  directivetype = "function"
  priority = FunctionDocumenter.priority + 1

  @classmethod
  def can_document_member(cls, member, membername, isattr, parent):
    return isinstance(parent, ModuleDocumenter) and hasattr(member, "__nb_signature__")


def loaded():
  """What the package loads when it is first asked for: autodoc looks for names that are there."""
  import reshard

  vars(reshard).update({name: getattr(reshard, name) for name in reshard.__all__})


def setup(app):
  loaded()
  # A class of two modules has an entry in each, and no third name that both would claim.
  ClassDocumenter.get_canonical_fullname = lambda self: None
  app.add_lexer("mermaid", TextLexer)  # diagrams are shown as their text
  app.add_autodocumenter(ExtensionFunction)
  app.connect("autodoc-process-docstring", literal)
  app.connect("autodoc-process-signature", signature)
