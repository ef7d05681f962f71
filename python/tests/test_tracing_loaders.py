# SPDX-License-Identifier: Apache-2.0
"""Protects: a traced layout is right, or it is refused, whatever the loader does: a refit by it leaves
every parameter and buffer with the bytes that the loader would have left there."""

import logging

import pytest

torch = pytest.importorskip("torch")

import tracing_loaders as loaders  # noqa: E402

import reshard  # noqa: E402
from reshard import tracing  # noqa: E402

SETTINGS = {
  "default": {},
  "recording": {"method": "recording"},
  "numbers": {"method": "numbers"},
  "whole": {"prove": "whole"},
}
LISTS = (loaders.HONEST, loaders.BY_NUMBERS, loaders.COMPUTE, loaders.BRANCH, loaders.LIE, loaders.MAKERS)


@pytest.fixture(autouse=True)
def one_thread():
  torch.set_num_threads(1)
  torch.manual_seed(5)


def values(seed):
  """Weights of a checkpoint: with signs, fractions, repeats, zeros, and beyond what narrow dtypes hold."""
  random = torch.Generator().manual_seed(seed)
  made = {}
  for name, (shape, dtype) in loaders.WEIGHTS.items():
    x = torch.randn(shape, generator=random) * 10.0 ** torch.randint(-3, 3, shape, generator=random)
    if seed and shape:
      x[:2] = 0
      x[-1] = x[-2]
    made[name] = x.to(dtype) if dtype != torch.bool else x > 0
  return made


def read(load):
  return lambda module, weights: load(module, dict(weights))


def contents(module):
  return {n: t.detach().clone() for n, t in (*module.named_parameters(), *module.named_buffers())}


def loaded(load, weights):
  """What the loader leaves, of a new module."""
  module = loaders.Module()
  with torch.no_grad():
    load(module, {n: t.clone() for n, t in weights.items()})
  return contents(module)


def refitted(layout, weights, like):
  """What a refit by the layout leaves in a new module."""
  held = contents(loaders.Module())
  targets = {}
  for t in layout.local(0):
    if t.name not in held or held[t.name].shape != like[t.name].shape or held[t.name].dtype != like[t.name].dtype:
      held[t.name] = torch.zeros(like[t.name].shape, dtype=like[t.name].dtype)
    targets[t.name] = held[t.name].reshape(-1).view(torch.uint8).view(getattr(torch, NAMES.get(t.dtype.name, t.dtype.name)))
    targets[t.name] = targets[t.name].view(held[t.name].shape)
  if targets:
    source = reshard.layout("hf", layout.model)
    options = {"source": source, "source_tensors": weights, "target": layout, "target_tensors": targets}
    with reshard.Session(reshard.local(1)[0], **options) as session:
      session.refit(1)
  return held


NAMES = {
  "f32": "float32", "bf16": "bfloat16", "f16": "float16", "f8_e4m3": "float8_e4m3fn", "i64": "int64",
  "i32": "int32", "u8": "uint8", "boolean": "bool",
}  # fmt: skip


def wrong(found, load):
  """The tensors that a refit by the layout leaves otherwise than the loader."""
  said = set()
  for seed in range(2):
    weights = values(seed)
    theirs = loaded(load, weights)
    ours = refitted(found.layout, weights, theirs)
    for name in theirs.keys() | ours.keys():
      a, b = theirs.get(name), ours.get(name)
      if a is None:  # the loader took it away
        continue
      if b is None or not torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)):
        exact = b is None or found.layout.model is None or not is_exp(found.layout, name)
        if exact or not torch.allclose(a, b, rtol=1e-6, atol=0):
          said.add(name)
  return said - found.constants[0].keys()


def is_exp(layout, name):
  return any(t.name == name and t.map == "negated_exp" for t in layout.local(0))


def trace(load, **options):
  return tracing.trace(lambda _: loaders.Module(), read(load), loaders.WEIGHTS, **options)


def test_there_are_enough_loaders_and_each_has_a_name_of_its_own():
  assert len(loaders.ALL) == sum(map(len, LISTS))
  assert len(loaders.ALL) - len(loaders.HONEST) > 150


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", loaders.ALL)
def test_a_layout_is_right_or_refused(name, setting, recwarn):
  load = loaders.ALL[name]()
  try:
    found = trace(load, **SETTINGS[setting])
  except (tracing.TracingError, RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
    assert name not in loaders.HONEST or setting == "numbers", error
    assert name not in loaders.BY_NUMBERS or setting == "recording", error
    return
  assert wrong(found, load) == set()
  assert str(found.proof) == "proved with values" and "proved with values" in repr(found)


@pytest.mark.parametrize("name", [*loaders.COMPUTE, *loaders.BRANCH])
def test_recording_needs_no_proof_to_refuse_what_computes_or_looks(name):
  load = loaders.ALL[name]()
  try:
    found = trace(load, method="recording", prove=False)
  except (tracing.TracingError, RuntimeError, TypeError, NotImplementedError, AttributeError):
    return
  assert wrong(found, load) == set()
  assert "not proved" in repr(found)


@pytest.mark.parametrize(
  "name, said",
  [
    ("alpha", "'p': the loader computes add 3 of 'w'"),
    ("foreach mul", "'p': holds the result of _foreach_mul_ while 'w' is loaded"),
    ("out of mul", "'p': holds the result of mul while 'w' is loaded"),
    ("replaced by a product", "'p': holds the result of mul while 'w' is loaded"),
    ("replaced by a constant", "'p': the loader puts other values than a weight's in its place"),
    ("casts to bf16 and back", "'p': the loader casts float32 to bfloat16 to float32"),
    ("identifiers narrowed", "'gate.narrow': the loader computes conversion from torch.int64 to torch.int32 of 'ids'"),
    ("numpy", r"'w': the loader looks at its values \(numpy\)"),
    ("sum above 100", r"'w': the loader looks at its values \(_local_scalar_dense\)"),
    ("quietly", r"'w': the loader looks at its values \(_local_scalar_dense\)"),
    ("python's chance", "draws random numbers"),
    ("outside", r"'w': the loader writes it \(copy_\) to memory that is no parameter or buffer"),
    ("attribute", "'note': the loader keeps values of 'w' there"),
    ("tells meta", "does otherwise than its trace says, in 1 places: rank 0: 'p': other values than"),
    ("in a thread", "does otherwise than its trace says, in 1 places: rank 0: 'p': the loader writes it"),
    ("the second time", "does otherwise than its trace says"),
    ("a constant that changes", "'gate.steps': depends on values, and the layout has it not"),
  ],
)
def test_a_refusal_names_the_tensor_and_what_is_done_to_it(name, said):
  with pytest.raises(tracing.TracingError, match=said):
    trace(loaders.ALL[name]())


def test_buffers_are_traced_whatever_their_name(caplog):
  found = trace(loaders.HONEST["integer buffer of another name"])
  (local,) = found.layout.local(0)
  assert local.name == "gate.tid2eid" and found.layout.tensors["ids"].name not in found.unused
  with caplog.at_level(logging.WARNING, "reshard.tracing"):
    reshard.traced(lambda _: loaders.Module(), read(loaders.LIE["counted"]), loaders.WEIGHTS)
  assert "buffers that the layout leaves out: gate.steps (add_)" in caplog.text
  assert trace(loaders.LIE["new constant"]).constants == {0: {"loaded": "other values"}}


@pytest.mark.parametrize("method", ["recording", "numbers"])
def test_a_module_is_what_it_was_before_it_was_traced(method):
  module = loaders.Module()
  kept = {n: (t, t.data_ptr(), t.clone()) for n, t in (*module.named_parameters(), *module.named_buffers())}
  attributes = dict(vars(module))
  for name in ("experts", "parameter replaced", "new buffer", "ties", "data transposed", "integer buffer of another name"):
    if method == "recording" or name in ("experts", "ties"):
      tracing.trace(lambda _: module, read(loaders.HONEST[name]), loaders.WEIGHTS, method=method)
  with pytest.raises(tracing.TracingError):
    tracing.trace(lambda _: module, read(loaders.COMPUTE["mul_"]), loaders.WEIGHTS, method=method)
  now = {n: t for n, t in (*module.named_parameters(), *module.named_buffers())}
  assert now.keys() == kept.keys() and vars(module) == attributes
  for name, (tensor, address, values) in kept.items():
    assert now[name] is tensor and tensor.data_ptr() == address and torch.equal(tensor, values), name


# -- large models


class Layers(torch.nn.Module):
  """Twelve layers, of which `wrong` puts its rows the other way round if they have values."""

  def __init__(self, wrong=()):
    super().__init__()
    self.wrong = wrong
    self.layers = torch.nn.ParameterList(torch.nn.Parameter(torch.empty(8, 4), requires_grad=False) for _ in range(12))
    self.head = torch.nn.Parameter(torch.empty(16, 4), requires_grad=False)

  def load_weights(self, weights):
    for name, w in weights:
      if name.startswith("layer"):
        i = int(name.split(".")[1])
        turned = i in self.wrong and not w.is_meta
        self.layers[i].data.copy_(w.flip(0) if turned else w)
      else:
        self.head.data.copy_(w.cpu())


LAYERS = {f"layer.{i}": ((8, 4), "float32") for i in range(12)} | {"head": ((16, 4), "float32")}


def trace_layers(wrong=(), **options):
  return tracing.trace(lambda _: Layers(wrong), lambda m, weights: m.load_weights(weights), LAYERS, **options)


def test_of_a_large_model_a_sample_is_proved_and_all_of_it_on_request(monkeypatch):
  assert str(trace_layers().proof) == "proved with values"
  monkeypatch.setattr("reshard.tracing._proof.SMALL", 1000)
  found = trace_layers()
  assert (found.proof.proved, found.proof.of) == (3, 13)
  assert "proved with values on 3 of 13 local tensors" in repr(found)
  assert str(trace_layers(prove="whole").proof) == "proved with values"
  for wrong in (0, 11):  # the first and the last of their kind
    with pytest.raises(tracing.TracingError, match=f"'layers.{wrong}': other values"):
      trace_layers([wrong])
  assert trace_layers([5]).proof.proved == 3
  with pytest.raises(tracing.TracingError, match=r"'layers.5': other values"):
    trace_layers([5], prove="whole")


def test_a_whole_proof_goes_in_passes_that_memory_allows(monkeypatch):
  monkeypatch.setattr("reshard.tracing._proof.SMALL", 1000)
  monkeypatch.setattr("reshard.tracing._proof._room", lambda: 1200)
  assert str(trace_layers(prove="whole").proof) == "proved with values"
  with pytest.raises(tracing.TracingError, match=r"'layers.5': other values"):
    trace_layers([5], prove="whole")
  monkeypatch.setattr("reshard.tracing._proof._room", lambda: 400)
  with pytest.raises(tracing.TracingError, match=r"'head' and its weights .* cannot be proved; prove=False"):
    trace_layers()
  assert str(trace_layers(prove=False).proof) == "not proved"


def test_a_loader_that_joins_tensors_with_and_without_values_is_proved_whole(monkeypatch):
  def load(module, weights):
    rows = torch.cat([w for name, w in sorted(dict(weights).items()) if name != "head"])
    for parameter, part in zip(module.layers, rows.split(8), strict=True):
      parameter.data.copy_(part)

  monkeypatch.setattr("reshard.tracing._proof.SMALL", 1000)
  found = tracing.trace(lambda _: Layers(), load, LAYERS)
  assert (found.proof.proved, found.proof.of) == (12, 12)
