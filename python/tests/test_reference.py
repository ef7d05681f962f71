# SPDX-License-Identifier: Apache-2.0
"""Protects: everything public has a docstring of its own: the API of the site (tests/site) is made of them."""

import enum
import importlib
import inspect
import re

import pytest

MODULES = ["reshard", "reshard.tracing", "reshard.tracing.transformers", "reshard.hf", "reshard.vllm", "reshard.dtensor", "reshard.fleet", "reshard.lora"]


def members(cls):
  """Names and things of a class and its bases in reshard, without the values of an enumeration.

  nanobind adds the type of an iterator to its class when the first is made.
  """
  for base in cls.__mro__:
    if base.__module__.startswith("reshard"):
      for name, thing in vars(base).items():
        if not name.startswith("_") and not name.endswith("Iterator") and not isinstance(thing, enum.Enum):
          yield name, thing


def everything():
  for module in MODULES:
    there = importlib.import_module(module)
    for name in there.__all__:
      thing = getattr(there, name)
      yield f"{module}.{name}", thing
      if inspect.isclass(thing):
        for member, value in members(thing):
          yield f"{module}.{name}.{member}", value


def own_words(name, thing):
  """The docstring without lines that are signatures, as nanobind adds them."""
  text = inspect.cleandoc(getattr(getattr(thing, "__func__", thing), "__doc__", None) or "")
  signature = re.compile(rf"(\d+\. )?`*({re.escape(name.rpartition('.')[2])})?\(.*\) -> .*")
  return "\n".join(line for line in text.splitlines() if not signature.fullmatch(line)).strip()


def test_everything_public_has_a_docstring_that_is_not_just_a_signature():
  pytest.importorskip("transformers")
  bare = [
    name
    for name, thing in everything()
    if (callable(thing) or isinstance(thing, property) or hasattr(thing, "__func__"))
    and len(own_words(name, thing)) < 8
  ]
  assert bare == []
