# SPDX-License-Identifier: Apache-2.0
"""Law: a wrong argument is a reshard.Error or a TypeError, in one line that says which it is."""

import ast
import itertools
import re

import numpy as np
import pytest

import reshard
from reshard import _core
from reshard._arguments import _parsed

MODEL = reshard.Model.from_tensors("one", {"w": ((8, 8), "F32")})
LAYOUT = reshard.layout("hf", MODEL)
PLAN = reshard.plan(LAYOUT, LAYOUT)


class Odd:
  """No argument of anything. As a callable it takes all."""

  def __init__(self, *_):
    pass


WRONG = [
  Odd(), Odd, 1 << 70, -1, 1.5, float("nan"), "\udc80", "no such", b"x", None, True, [], [Odd()], {1: 2}, {"w": Odd()},
  [["a"]], (1, 2, 3), lambda *_: Odd(), range(3), np.zeros(3), MODEL, LAYOUT,
]  # fmt: skip

# Those that act on the machine or wait for others whatever their arguments are, and properties of results.
SKIPPED = {"launched", "copy_ceiling", "transports", "why_no_gpu", "join", "synthesize"}


def plausible(wanted, folder):
  """A value that an annotation allows."""
  text = "" if wanted is None else ast.unparse(wanted)
  memory = {"w": np.zeros((8, 8), np.float32)}
  if "Mapping[int" in text:
    return {0: memory}
  known = {
    "Box": [(0, 2)], "Layout": LAYOUT, "Model": MODEL, "Plan": PLAN, "RankBuffers": reshard.RankBuffers(LAYOUT, {0: memory}),
    "ProcessGroup": reshard.local(1)[0], "int": 1, "float": 0.1, "bool": False, "str": "hf",
  }  # fmt: skip
  for name, value in known.items():
    if re.search(rf"\b{name}\b", text):
      return value
  return str(folder / "nothing") if "PathLike" in text else memory


def functions():
  """(name, function, class that it is a method of or None) of the extension."""
  for name, thing in vars(_core).items():
    if hasattr(thing, "__nb_signature__") and name not in SKIPPED:
      yield name, thing, None
    if isinstance(thing, type):
      for inner, method in vars(thing).items():
        if hasattr(method, "__nb_signature__") and (inner == "__init__" or not inner.startswith("__")):
          yield f"{name}.{inner}", method, thing


def instance(kind):
  """An object whose methods can be called, or None if this test makes none of its class."""
  group = reshard.local(1)[0]
  made = {
    "Model": lambda: MODEL,
    "Layout": lambda: LAYOUT,
    "Plan": lambda: PLAN,
    "RankBuffers": lambda: reshard.RankBuffers.allocate(LAYOUT),
    "ProcessGroup": lambda: group,
    "LayoutBuilder": lambda: reshard.LayoutBuilder("mine", MODEL),
    "Box": lambda: reshard.Box([(0, 2)]),
    "PublishedVersion": reshard.PublishedVersion,
    "InProcessRefit": lambda: reshard.InProcessRefit(
      PLAN, reshard.RankBuffers.allocate(LAYOUT), reshard.RankBuffers.allocate(LAYOUT)
    ),
    "Session": lambda: reshard.Session(
      group,
      source=LAYOUT,
      target=LAYOUT,
      source_tensors=reshard.RankBuffers.allocate(LAYOUT),
      target_tensors=reshard.RankBuffers.allocate(LAYOUT),
      timeout=0.1,
    ),
    "ModelFingerprints": lambda: reshard.fingerprints(reshard.RankBuffers.allocate(LAYOUT)),
    "RankPlan": lambda: PLAN.rank(0),
    "Tensor": lambda: reshard.RankBuffers.allocate(LAYOUT).tensor(0, "w"),
  }
  return made[kind.__name__]() if kind.__name__ in made else None


FUNCTIONS = {name: (function, kind) for name, function, kind in functions()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_arguments_are_named(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # a text or bytes may be taken for the name of a file, which is written
  function, kind = FUNCTIONS[name]
  parameters = _parsed(function.__nb_signature__[-1][0])
  is_method = bool(parameters) and parameters[0].name == "self"
  parameters = [p for p in parameters[is_method:] if p.kind in ("positional", "keyword")]
  own = f"{kind.__name__ if name.endswith('__init__') else name}()"
  for parameter, wrong in itertools.product(parameters, WRONG):
    if is_method and not name.endswith("__init__"):
      of = instance(kind)
      if of is None:
        pytest.skip("no object of this class is made here")
      call = getattr(of, name.rpartition(".")[2])
    else:
      call = kind if name.endswith("__init__") else function
    arguments = {p.name: plausible(p.wanted, tmp_path) for p in parameters if p.required}
    arguments[parameter.name] = wrong
    try:
      call(**arguments)
    except (reshard.Error, TypeError) as error:
      text = str(error)
      assert "\n" not in text and "std::" not in text and "incompatible" not in text, text
      if type(error) is TypeError:
        assert any(word in text.lower() for word in (own[:-2].lower(), parameter.name.split("_")[0])), text


@pytest.mark.parametrize(
  ("call", "text"),
  [
    (lambda: reshard.layout(), "layout(): needs the argument 'text'"),
    (lambda: reshard.layout("hf", MODEL, foldr="x"), "layout(): has no argument 'foldr'; did you mean 'folder'?"),
    (lambda: reshard.plan(LAYOUT, None), "plan(): target must be Layout, not None"),
    (lambda: reshard.plan(LAYOUT, LAYOUT, only=[3]), "plan(): only must be str or Iterable[str], not list with int in it"),
    (lambda: reshard.local(1 << 70), "is 1180591620717411303424, which does not fit 64 bits"),
    (lambda: reshard.layout("\udc80", MODEL), "layout(): text is no valid Unicode: '\\udc80'"),
    (lambda: reshard.plan(LAYOUT, LAYOUT, LAYOUT), "plan(): takes at most 2 arguments without a name, not 3"),
    (lambda: reshard.Box([1]), "box must be a reshard.Box or pairs (begin, end) of int, not list"),
    (lambda: reshard.Model.from_tensors("m", {"w": 3}), "'w' must be (shape, dtype)"),
    (lambda: reshard.RankBuffers(LAYOUT, 5), "tensors must be a mapping from ranks"),
    (lambda: reshard.RankBuffers(LAYOUT, {"0": {}}), "the keys must be ranks (int), not str"),
    (lambda: reshard.RankBuffers(LAYOUT, {0: {5: 1}}), "the keys must be names (str), not int"),
    (lambda: reshard.explain(LAYOUT), "explain(): plan must be Plan, not reshard._core.Layout"),
  ],
)
def test_says_what_would_be_right(call, text):
  with pytest.raises(TypeError) as raised:
    call()
  assert text in str(raised.value) and "\n" not in str(raised.value)


def test_a_module_is_never_called():
  torch = pytest.importorskip("torch")

  class Module(torch.nn.Linear):
    def forward(self, *_):
      raise AssertionError("it was called")

  for tensors in (Module(8, 8), Module):
    with pytest.raises(TypeError, match="must be a mapping from names to tensors"):
      reshard.RankBuffers(LAYOUT, {0: tensors})
  with pytest.raises(TypeError, match=r"a module \(.*Module\), which is never called; give its state_dict\(\)"):
    reshard.RankBuffers(LAYOUT, {0: Module(8, 8)})
