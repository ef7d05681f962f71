# SPDX-License-Identifier: Apache-2.0
"""Protects: a watch of modules sees every change of what they hold, walks none of them where nothing changed, and keeps
no module alive."""

import gc
import weakref

import pytest
import torch

import reshard
from reshard.live import _watch
from reshard.live._watch import watched


class Part(torch.nn.Module):
  def __init__(self, rows=4):
    super().__init__()
    self.linear = torch.nn.Linear(3, rows, dtype=torch.bfloat16)
    self.register_buffer("scale", torch.ones(2))
    self.register_buffer("scratch", torch.ones(2), persistent=False)


class Model(torch.nn.Module):
  def __init__(self):
    super().__init__()
    self.pg_collection = object()
    self.layers = torch.nn.ModuleList([Part(), Part()])


class Wrapper(torch.nn.Module):
  def __init__(self, module):
    super().__init__()
    self.module = module


def replace_parameter(model):
  model.layers[1].linear.weight = torch.nn.Parameter(torch.zeros(4, 3, dtype=torch.bfloat16))


def replace_memory(model):
  model.layers[0].linear.weight.data = torch.zeros(4, 3, dtype=torch.bfloat16)


def other_shape(model):
  weight = model.layers[0].linear.weight
  weight.data = weight.data.view(3, 4)


def other_dtype(model):
  weight = model.layers[0].linear.weight
  weight.data = weight.data.view(torch.float16)


def other_strides(model):
  weight = model.layers[0].linear.weight
  weight.data = weight.data.as_strided((4, 3), (1, 4))


def cast(model):
  model.float()


def add_buffer(model):
  model.layers[0].register_buffer("more", torch.ones(1))


def remove_buffer(model):
  del model.layers[0].scale


def replace_child(model):
  model.layers[1] = Part()


def replace_inner(model):
  model.layers[1].linear = torch.nn.Linear(3, 4, dtype=torch.bfloat16)


def add_child(model):
  model.layers.append(Part())


def add_and_remove(model):
  """The new parameter may have the identity of the old one."""
  part = model.layers[0].linear
  del part.weight
  part.weight = torch.nn.Parameter(torch.zeros(4, 3, dtype=torch.bfloat16))


def make_parameter_a_buffer(model):
  part = model.layers[0].linear
  bias = part.bias.detach()
  del part.bias
  part.register_buffer("bias", bias)


CHANGES = [
  replace_parameter, replace_memory, other_shape, other_dtype, other_strides, cast, add_buffer, remove_buffer,
  replace_child, replace_inner, add_child, add_and_remove, make_parameter_a_buffer,
]  # fmt: skip


def same(a, b):
  def facts(tensors):
    return {n: (t.data_ptr(), t.shape, t.dtype, t.stride()) for n, t in tensors.items()}

  return facts(a) == facts(b)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_change_is_seen(change, wrapped):
  model = Model()
  roots = [Wrapper(model) if wrapped else model]
  before = watched(roots)
  version = before.version
  change(model)
  after = watched(roots)
  assert after is before
  assert after.version > version
  assert same(after.tensors, reshard.module_tensors(roots))
  version = after.version
  assert watched(roots).version == version


def test_what_did_not_change_is_not_walked(monkeypatch):
  roots = [Model(), Model()]
  watch = watched(roots)
  assert {name for name, _, _ in watch.buffers} == {f"model{i}.layers.{j}.scale" for i in (0, 1) for j in (0, 1)}
  with monkeypatch.context() as patched:
    for walk in ("named_modules", "modules", "named_parameters", "children"):
      patched.setattr(torch.nn.Module, walk, lambda *_, **__: pytest.fail("walked"))
    with torch.no_grad():
      roots[0].layers[0].linear.weight.fill_(7)
    assert watched(roots) is watch
    assert watch.version == 1
  assert watch.tensors["model0.layers.0.linear.weight"].unique().tolist() == [7]


def test_other_modules_have_another_watch():
  first, second = Model(), Model()
  assert watched([first]) is not watched([second])
  assert watched([first, second]) is not watched([first])


def test_parts_that_a_model_names_are_asked_for_each_time():
  model = Model()
  parts = [("", model.layers[0], model.pg_collection)]
  model.refit_modules = lambda: parts
  watch = watched([model])
  assert all(name.startswith("layers.0.") for name in watch.tensors)
  parts.append(("", model.layers[1], model.pg_collection))
  assert any(name.startswith("layers.1.") for name in watched([model]).tensors)


def test_quantised_parameters_are_read_each_time():
  model = Model()
  model.layers[0].linear.weight.quantize_ = lambda _: None
  watch = watched([model])
  assert not watch.plain
  version = watch.version
  assert watched([model]).version == version + 1


def test_no_module_is_kept_alive():
  model = Model()
  seen, weight = weakref.ref(model), weakref.ref(model.layers[0].linear.weight)
  watched([model])
  kept = len(_watch._watches)
  del model
  gc.collect()
  assert seen() is None
  assert weight() is None
  assert len(_watch._watches) == kept - 1


def test_what_is_no_module_is_refused():
  with pytest.raises(reshard.InvalidArgumentError, match="a Tensor is no module of torch"):
    watched([torch.ones(1)])
