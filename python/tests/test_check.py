# SPDX-License-Identifier: Apache-2.0
"""Protects: a check against a fresh load finds whatever a kernel reads and a live model holds otherwise, names it and the step
that made it, and is silent about all else."""

import contextlib
import copy
import functools
import json

import pytest

import reshard

torch = pytest.importorskip("torch")

from reshard.check import DifferenceError, Fresh, Report, Rules, check  # noqa: E402


class Packed:
  """Stands for an object that holds a library's memory."""

  def __init__(self, weight):
    self.handle = id(weight)
    self.secret = [float(x) for x in weight.reshape(-1)]


class Kernel:
  def __init__(self, layer):
    self.scales = {"weight": layer.weight.abs().max()}
    self.limit = float(layer.weight.max())


class Layer(torch.nn.Module):
  """A layer of an engine, which derives what its kernels read in each way that engines do."""

  def __init__(self):
    super().__init__()
    self.weight = torch.nn.Parameter(torch.empty(4, 6), requires_grad=False)
    self.register_buffer("table", torch.arange(4.0), persistent=False)
    self.kv_cache = torch.zeros(2)

  def process(self):
    self.transposed = self.weight.t()  # of the same memory
    self.kernel = Kernel(self)
    self.parts = [self.weight[:2].clone(), (self.weight[2:].clone(),)]
    packed = self.weight.t().contiguous()
    self.forward_packed = lambda x: x @ packed
    self.partial = functools.partial(torch.add, self.weight.sum(dim=1))
    self.native = Packed(self.weight)
    self.padding = torch.empty(3)  # which nothing sets


class Model(torch.nn.Module):
  def __init__(self):
    super().__init__()
    self.layers = torch.nn.ModuleList([Layer(), Layer()])
    self.head = torch.nn.Linear(6, 5, bias=False)
    self.head.weight = self.layers[0].weight  # tied
    self.layers[0].neighbours = [self.layers[1], self.layers[1].process]  # which are walked by their own paths
    self.odd = torch.tensor([float("nan"), 1.0])


WEIGHTS = {i: torch.arange(24.0).reshape(4, 6) * (i + 1) + 0.5 for i in range(2)}
RULES = Rules(attributes={"KV caches": ("kv_cache",)}, native={"Packed": lambda _, p: [("weight", torch.tensor(p.secret))]})


def load(model, weights=WEIGHTS):
  for i, layer in enumerate(model.layers):
    layer.weight.data.copy_(weights[i])


def process(model):
  for layer in model.layers:
    layer.process()


FRESH = Fresh(lambda: contextlib.nullcontext(Model()), [("load", load), ("process", process)])


@pytest.fixture
def live():
  model = Model()
  load(model)
  process(model)
  for layer in model.layers:
    layer.kv_cache += 7
    layer.padding.fill_(3)
  return model


def test_a_model_with_the_same_values_is_equal(live):
  report = check(live, FRESH, RULES)
  assert report.equal and report.raise_for_difference() is report
  # Two weights, of which the head has one again; two tables; eight derived tensors and one of the model; two packed ones.
  assert report.compared["parameter"] == 3 and report.compared["buffer"] == 2 and report.compared["native"] == 2
  assert report.compared["derived"] >= 15 and report.compared["alias"] == 3
  assert report.unset == ["layers.0.padding", "layers.1.padding"]
  assert report.ignored["KV caches"] == 2 and report.ranks == [0]
  assert str(report).endswith("equal")


FAULTS = {
  "a parameter": (lambda m: m.layers[1].weight.data[2].fill_(9), "layers.1.weight", "parameter", "load"),
  "one element": (lambda m: m.layers[0].kernel.scales["weight"].fill_(1), "layers.0.kernel.scales.weight", "derived", "process"),
  "a buffer": (lambda m: m.layers[1].table.add_(1), "layers.1.table", "buffer", "the constructor"),
  "in a list": (lambda m: m.layers[0].parts[1][0].neg_(), "layers.0.parts.1.0", "derived", "process"),
  "in a closure": (
    lambda m: m.layers[1].forward_packed.__closure__[0].cell_contents.zero_(), "layers.1.forward_packed.<packed>", "derived", "process",
  ),
  "in a partial": (lambda m: m.layers[0].partial.args[0].zero_(), "layers.0.partial.<0>", "derived", "process"),
  "a number": (lambda m: setattr(m.layers[0].kernel, "limit", 1.0), "layers.0.kernel.limit", "number", "process"),
  "packed memory": (lambda m: m.layers[0].native.secret.__setitem__(5, 0.0), "layers.0.native.<weight>", "native", "process"),
  "a missing tensor": (lambda m: delattr(m.layers[1], "parts"), "layers.1.parts", "structure", ""),
  "another dtype": (lambda m: setattr(m.layers[1].kernel, "scales", {"weight": WEIGHTS[1].max().double()}), "layers.1.kernel.scales.weight", "derived", "process"),
  "strides": (lambda m: setattr(m.layers[0], "parts", [WEIGHTS[0][:2].t().contiguous().t(), (WEIGHTS[0][2:],)]), "layers.0.parts.0", "derived", "process"),
  "a broken tie": (lambda m: setattr(m.head, "weight", copy.deepcopy(m.layers[0].weight)), "head.weight", "alias", ""),
  "a broken view": (lambda m: setattr(m.layers[1], "transposed", m.layers[1].transposed.clone()), "layers.1.transposed", "alias", ""),
  "a tie that is none": (
    lambda m: setattr(m.layers[0].kernel, "scales", {"weight": m.layers[0].weight.view(-1)[23]}), "layers.0.kernel.scales.weight", "alias", "",
  ),
  "a class": (lambda m: setattr(m.layers[0], "kernel", m.layers[1].native), "layers.0.kernel.<class>", "structure", ""),
  "a module": (lambda m: m.layers.append(Layer()), "layers.2", "structure", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_the_step_that_made_it(live, fault):
  spoil, path, kind, step = FAULTS[fault]
  spoil(live)
  report = check(live, FRESH, RULES, rank=3)
  views = {f"layers.{i}.transposed" for i in range(2)}  # of parameters
  found = [(d.path, d.kind, d.rank) for d in report.differences if d.path == path or d.path not in views]
  assert found == [(path, kind, 3)], report
  assert report.differences[0].step.startswith(step) and path in str(report)
  with pytest.raises(DifferenceError, match=kind) as error:
    report.raise_for_difference()
  assert error.value.report is report and isinstance(error.value, reshard.Error)


def test_a_stale_derived_tensor_is_all_that_is_named(live):
  """The fault of engines that reload parameters and forget what they derived of them."""
  for layer in live.layers:
    layer.weight.data.add_(1)
  report = check(live, Fresh(FRESH.build, [("load", lambda m: load(m, {i: w + 1 for i, w in WEIGHTS.items()})), ("process", process)]), RULES)
  assert {d.path.split(".", 2)[2].split(".")[0] for d in report.differences} == {"kernel", "parts", "forward_packed", "partial", "native"}
  assert all(d.step.startswith("process of Layer") for d in report.differences)


def test_what_nothing_sets_is_left_out_and_said(live):
  for i, layer in enumerate(live.layers):
    layer.padding.fill_(i + 0.25)
  report = check(live, FRESH, RULES)
  assert report.equal and report.unset == ["layers.0.padding", "layers.1.padding"]
  live.layers[1].table[0] = -1  # a fault beside it
  report = check(live, FRESH, RULES)
  assert [d.path for d in report.differences] == ["layers.1.table"] and "2 that nothing sets" in str(report)


def test_memory_that_both_models_have_is_said(live):
  """A cache of the process, from which a fresh load gets the engine's own tensors: a fault in it would not show."""
  fresh = Fresh(FRESH.build, [*FRESH.steps, ("share", lambda m: setattr(m.layers[1], "table", live.layers[1].table))])
  report = check(live, fresh, RULES)
  assert report.shared == ["layers.1.table"] and "1 in shared memory not compared" in str(report)


def test_what_only_the_live_model_has_is_said(live):
  live.layers[0].cache_of_a_forward_pass = torch.ones(3)
  report = check(live, FRESH, RULES)
  assert report.equal and report.served == ["layers.0.cache_of_a_forward_pass"]
  assert "1 that only a serving engine has not compared" in str(report)


def test_ranks_that_load_together_load_twice_together(live):
  """A rank where all is equal takes part in the second load of another."""
  loads = []
  fresh = Fresh(FRESH.build, [("load", lambda m: loads.append(load(m))), ("process", process)])
  assert check(live, fresh, RULES, anyone=lambda _: True).equal and len(loads) == 2


def test_the_reports_of_ranks_travel_as_json_and_are_one(live):
  live.layers[1].weight.data.zero_()
  reports = [check(live, FRESH, RULES, rank=rank) for rank in range(2)]
  again = [Report.from_dict(json.loads(json.dumps(r.as_dict()))) for r in reports]
  assert again == reports
  both = Report.of(again)
  assert both.ranks == [0, 1] and both.tensors == 2 * reports[0].tensors and both.bytes == 2 * reports[0].bytes
  assert {d.rank for d in both.differences} == {0, 1}
  with pytest.raises(reshard.InvalidArgumentError, match="no report"):
    Report.from_dict({"compared": {}})
