# SPDX-License-Identifier: Apache-2.0
"""Loaders for the tests of traced layouts: those that place weights, and those that compute, look at
values, depend on chance, or behave otherwise when they are watched.

Each is f(module, weights), with weights as a dict, or a function that makes one with a state of its
own (`MAKERS`). `HONEST` must be traced by recording, `BY_NUMBERS` in one way at least; of all others a
layout must be right, or refused.
"""

import contextlib
import copy
import ctypes
import itertools
import random
import threading

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from tracing_module import BF16, F16, F32, F8, I64, Module, WEIGHTS  # noqa: F401


def put(into, name, change=lambda x: x):
  """A loader that copies a function of a weight into a parameter."""
  return lambda m, w: m.get_parameter(into).data.copy_(change(w[name]))


def then(change, name="w"):
  """A loader that copies the weight into `p`, and then changes it there."""

  def load(m, w):
    m.p.data.copy_(w[name])
    return change(m.p.data, w)

  return load


def when(condition, name="w"):
  """A loader that turns the rows round if a condition on the weight holds."""

  def load(m, w):
    m.p.data.copy_(w[name].flip(0) if condition(w[name]) else w[name])

  return load


def set_to(make, name="p"):
  """A loader that gives the module another tensor."""
  return lambda m, w: setattr(m, name, nn.Parameter(make(w), requires_grad=False))


def data_to(make):
  def load(m, w):
    m.p.data = make(w)

  return load


_ROWS = torch.tensor([4, 1, 0, 2, 7, 6, 5, 3])
_COLUMNS = torch.tensor([5, 0, 3, 1, 2, 4])


def _experts(m, w):
  for i, name in enumerate(("w", "w", "v")):
    m.stack.data[i].copy_(w[name])


def _fused(m, w):
  m.big.data[:8].copy_(w["u"])
  m.big.data[8:, :6].copy_(w["w"])
  m.big.data[8:, 6:].zero_()


def _interleaved(m, w):
  m.big.data[0::2].copy_(w["u"])
  m.big.data[1::2, :6] = w["w"]
  m.big.data[1::2, 6:] = 0


def _groups(m, w):
  groups = w["u"].view(2, 4, 8)
  q, k, v = groups.split([2, 1, 1], dim=1)
  m.s.data.copy_(torch.cat([x.reshape(-1, 8) for x in (q, k, v)]))


def _in_inference(m, w):
  with torch.inference_mode():
    m.p.data.copy_(w["w"].reshape(2, 4, 6).flatten(0, 1).chunk(1)[0].contiguous())


def _twice(m, w):
  for _ in range(2):
    m.p.data.copy_(w["w"])
    m.p.data[:2].copy_(w["w"][2:4])


def _logs(m, w):
  m.p.data.copy_(w["w"])
  m.note = f"{w['w'].abs().max()}"


def _half(m, w):
  m.p.data[:4].copy_(w["w"][4:])


def _by_name(m, w):
  for step, (name, weight) in enumerate(w.items()):
    if name == "w":
      m.p.data.copy_(weight)
    elif step == 1:
      m.q.data.copy_(weight)


def _new_buffer(m, w):
  m.register_buffer("extra", w["w"].clone())


def _new_parameter(m, w):
  m.register_parameter("extra", nn.Parameter(w["w"][:4], requires_grad=False))


def _transposes_itself(m, w):
  m.s.data.copy_(w["u"])
  m.s.data = m.s.data.t()


def _ties(m, w):
  m.p.data.copy_(w["w"])
  m.t = m.p


def _masked(m, w):
  mask = torch.arange(8) % 2 == 0
  m.p.data[mask] = w["w"][mask]


def _placed_rows(m, w):
  m.p.data[_ROWS] = w["w"]


HONEST = {
  "copy": put("p", "w"),
  "renamed twice": lambda m, w: (m.p.data.copy_(w["w"]), m.q.data.copy_(w["v"])),
  "fused and padded": _fused,
  "interleaved": _interleaved,
  "groups of q, k, v": _groups,
  "experts": _experts,
  "stacked": lambda m, w: m.stack.data.copy_(torch.stack([w["w"], w["w"], w["w"]])),
  "stacked into out": lambda m, w: torch.stack([w["w"], w["w"], w["w"]], out=m.stack.data),
  "joined into out": lambda m, w: torch.cat([w["u"], w["u"]], out=m.big.data),
  "split": lambda m, w: [p.copy_(x) for p, x in zip(m.s.data.chunk(2), w["u"].split(4), strict=True)],
  "transposed": put("t", "w", lambda x: torch.nn.functional.pad(x.t(), (0, 0))),
  "transposed and contiguous": put("t", "w", lambda x: x.T.contiguous()),
  "padded": put("s", "w", lambda x: torch.nn.functional.pad(x, (0, 2))),
  "cast": put("q", "w"),
  "cast up": put("p", "v"),
  "cast up and back": put("q", "v", lambda x: x.float().to(BF16)),
  "cast through double": put("p", "w", lambda x: x.double().float()),
  "cast of fewer": put("q", "w", lambda x: x.to(BF16).float()),
  "minus exp": put("p", "w", lambda x: -torch.exp(x)),
  "minus exp of bf16": put("p", "v", lambda x: -torch.exp(x.float())),
  "plus one": put("p", "w", lambda x: x + 1),
  "plus one with alpha": put("p", "w", lambda x: torch.add(x, 0.5, alpha=2)),
  "minus one": put("p", "w", lambda x: x - 1.0),
  "plus one in place": then(lambda p, w: p.add_(1)),
  "plus one in bf16": put("q", "v", lambda x: x + 1),
  "rows by a list": put("p", "w", lambda x: x[[4, 1, 0, 2, 7, 6, 5, 3]]),
  "rows by a tensor": put("p", "w", lambda x: x[_ROWS]),
  "rows by a tensor where the weights are": put("p", "w", lambda x: x[_ROWS.to(x.device)]),
  "rows by the module's own table": lambda m, w: m.p.data.copy_(w["w"][m.gate.order]),
  "rows put": _placed_rows,
  "rows put by index_copy_": lambda m, w: m.p.data.index_copy_(0, _ROWS, w["w"]),
  "columns by a tensor": put("p", "w", lambda x: x[:, _COLUMNS]),
  "columns selected": put("p", "w", lambda x: x.index_select(1, _COLUMNS)),
  "gathered": put("p", "w", lambda x: x.gather(0, _ROWS[:, None].expand(8, 6))),
  "masked rows": _masked,
  "masked with zeros": put("s", "u", lambda x: x.masked_fill(torch.eye(8, dtype=torch.bool), 0)),
  "chosen by a mask": put("s", "u", lambda x: torch.where(torch.eye(8, dtype=torch.bool), x, x.t())),
  "lower triangle": put("s", "u", torch.tril),
  "rolled": put("p", "w", lambda x: x.roll(3, 0)),
  "flipped": put("p", "w", lambda x: x.flip(0)),
  "turned": put("s", "u", lambda x: x.rot90()),
  "repeated": put("big", "u", lambda x: x.repeat(2, 1)),
  "repeated each": put("big", "u", lambda x: x.repeat_interleave(2, 0)),
  "one row for all": put("p", "row"),
  "one element for all": lambda m, w: m.p.data.fill_(w["one"]),
  "scalar": put("scalar", "one"),
  "by einsum": put("t", "w", lambda x: torch.einsum("ij->ji", x)),
  "moved to the cpu": put("p", "w", lambda x: x.cpu().clone().detach()),
  "a deep copy": put("p", "w", copy.deepcopy),
  "foreach copy": lambda m, w: torch._foreach_copy_([m.p.data, m.s.data], [w["w"], w["u"]]),
  "under inference mode": _in_inference,
  "bits of fp8 as bytes": put("raw", "f8", lambda x: x.view(torch.uint8)),
  "bits of f32 as i32": put("bits", "w", lambda x: x.view(torch.int32)),
  "through zeros": lambda m, w: m.p.data.copy_(torch.zeros(8, 6).copy_(w["w"])),
  "twice": _twice,
  "computes for a log": _logs,
  "half of it": _half,
  "by name and step": _by_name,
  "parameter replaced": set_to(lambda w: w["w"].clone()),
  "parameter replaced by the weight": set_to(lambda w: w["w"]),
  "parameter of another shape": set_to(lambda w: w["w"].t()),
  "data replaced": data_to(lambda w: w["w"].clone()),
  "data transposed": _transposes_itself,
  "ties": _ties,
  "new buffer": _new_buffer,
  "new parameter": _new_parameter,
  "float buffer": lambda m, w: m.scale.copy_(w["row"]),
  "integer buffer of another name": lambda m, w: m.gate.tid2eid.copy_(w["ids"]),
  "integer buffer through a temporary": lambda m, w: m.gate.tid2eid.copy_(torch.zeros(8, dtype=I64).copy_(w["ids"])),
  "half of an integer buffer": lambda m, w: m.gate.tid2eid[:4].copy_(w["ids"][4:]),
  "bool buffer": lambda m, w: m.flags.copy_(w["flags"]),
  "nothing": lambda m, w: None,
}  # fmt: skip

# Recording does not follow them; numbers do.
BY_NUMBERS = {
  "bytes": lambda m, w: m.p.data.view(torch.uint8).copy_(w["w"].view(torch.uint8)),
}


# -- computations


def _quantised(m, w):
  scale = w["w"].abs().amax(1, keepdim=True) / 127
  m.p.data.copy_((w["w"] / scale).round() * scale)


def _own_values_zeroed(m, w):
  x = w["w"].clone()
  x[x < 0] = 0
  m.p.data.copy_(x)


def _first_row_doubled(m, w):
  m.p.data.copy_(w["w"])
  m.p.data[0] *= 2


def _negated_view(m, w):
  m.p.data.copy_(torch._neg_view(w["w"]))


def _replaced_by_conjugate(m, w):
  m.p.data = torch._neg_view(w["w"])


COMPUTE = {
  "abs": put("p", "w", torch.abs), "clamp": put("p", "w", lambda x: x.clamp(min=0)),
  "round": put("p", "w", torch.round), "trunc": put("p", "w", torch.trunc), "sqrt": put("p", "w", lambda x: x.abs().sqrt()),
  "square": put("p", "w", torch.square), "double": put("p", "w", lambda x: x * 2), "half": put("p", "w", lambda x: x / 2),
  "times one": put("p", "w", lambda x: x * 1.0), "plus zero": put("p", "w", lambda x: x + 0.0),
  "negated": put("p", "w", torch.neg), "exp": put("p", "w", torch.exp), "exp of minus": put("p", "w", lambda x: torch.exp(-x)),
  "minus exp of bf16 in bf16": put("p", "v", lambda x: -torch.exp(x)), "minus exp in double": put("p", "w", lambda x: -torch.exp(x.double())),
  "plus half": put("p", "w", lambda x: x + 0.5), "plus two": put("p", "w", lambda x: x + 1 + 1),
  "alpha": put("p", "w", lambda x: torch.add(x, 1, alpha=3)), "alpha of sub": put("p", "w", lambda x: torch.sub(x, 1, alpha=-4)),
  "one minus": put("p", "w", lambda x: 1 - x), "rsub": put("p", "w", lambda x: torch.rsub(x, 1, alpha=2)),
  "sum of two": put("p", "w", lambda x: x + x), "centred": put("p", "w", lambda x: x - x.mean()),
  "normalised": put("p", "w", lambda x: x / x.norm()), "product": put("s", "u", lambda x: x @ x),
  "product with one": put("s", "u", lambda x: x @ torch.eye(8)), "running sum": put("p", "w", lambda x: x.cumsum(0)),
  "softmax": put("p", "w", lambda x: x.softmax(-1)), "sum of rows": put("p", "w", lambda x: x.sum(0)),
  "greatest": put("p", "w", lambda x: x.amax(0)), "relu": put("p", "w", torch.relu), "sigmoid": put("p", "w", torch.sigmoid),
  "nan to num": put("p", "w", torch.nan_to_num), "remainder": put("p", "w", lambda x: x.fmod(1)),
  "lerp": put("p", "w", lambda x: x.lerp(x.flip(0), 0.5)), "addcmul": put("p", "w", lambda x: torch.addcmul(x, x, x)),
  "sorted": put("p", "w", lambda x: x.sort(0).values), "argsort": put("p", "w", lambda x: x[x[:, 0].argsort()]),
  "top": put("p", "w", lambda x: x.topk(6).values), "positive or zero": put("p", "w", lambda x: torch.where(x > 0, x, 0.0)),
  "masked by itself": put("p", "w", lambda x: x.masked_fill(x < 0, 0)), "own values zeroed": _own_values_zeroed,
  "unique": put("p", "w", lambda x: x.unique()[: 48].reshape(8, 6)), "nonzero": put("s", "u", lambda x: x[x.nonzero()[:8, 0]]),
  "differences": put("p", "w", lambda x: x.diff(dim=0, prepend=x[:1])), "quantised": _quantised,
  "dropout": put("p", "w", lambda x: torch.dropout(x, 0.5, True)), "sparse": put("p", "w", lambda x: x.to_sparse().to_dense()),
  "fourier": put("p", "w", lambda x: torch.fft.fft(x).real), "neg view": _negated_view, "neg view kept": _replaced_by_conjugate,
  "complex": put("p", "w", lambda x: torch.view_as_real(torch.view_as_complex(x.view(8, 3, 2)).conj()).flatten(1)),
  "padded with ones": put("s", "w", lambda x: torch.nn.functional.pad(x, (0, 2), value=1.0)),
  "constant": put("p", "w", torch.ones_like), "constant rows": put("p", "w", lambda x: torch.cat([x[:4], torch.ones(4, 6)])),
  "constant by arange": put("p", "w", lambda x: torch.arange(48.0).view(8, 6)), "filled": lambda m, w: m.p.data.fill_(3),
  "masked with a constant": put("s", "u", lambda x: x.masked_fill(torch.eye(8, dtype=torch.bool), 1)),
  "xor of bits": put("bits", "w", lambda x: x.view(torch.int32) ^ 1), "bits and cast": put("p", "v", lambda x: x.view(F16).float()),
  "identifiers plus one": lambda m, w: m.gate.tid2eid.copy_(w["ids"] + 1), "identifiers negated": lambda m, w: m.gate.tid2eid.copy_(-w["ids"]),
  "identifiers narrowed": lambda m, w: m.gate.narrow.copy_(w["ids"]), "identifiers as numbers": lambda m, w: m.scale.copy_(w["ids"][:6]),
  "flags inverted": lambda m, w: m.flags.copy_(~w["flags"]), "flags from values": lambda m, w: m.flags.copy_(w["w"][:, 0] > 0),
  "casts to bf16 and back": put("p", "w", lambda x: x.bfloat16().float()), "casts to f16 and back": put("p", "w", lambda x: x.half().float()),
  "casts to fp8 and back": put("p", "w", lambda x: x.to(F8).float()), "casts twice": put("h", "w", lambda x: x.bfloat16()),
  "casts bf16 to f16 and back": put("q", "v", lambda x: x.half().bfloat16()), "casts to int and back": put("p", "w", lambda x: x.int().float()),
  "casts fp8": put("q", "f8", lambda x: x.to(BF16)), "casts in place": then(lambda p, w: p.copy_(p.bfloat16())),
  "minus exp of narrowed": put("p", "w", lambda x: -torch.exp(x.bfloat16().float())),
  "two maps in one": lambda m, w: (m.s.data[:4].copy_(w["u"][:4]), m.s.data[4:].copy_(w["u"][4:] + 1)),
  # In place, with out=, and for lists.
  "mul_": then(lambda p, w: p.mul_(2)), "add_ alpha": then(lambda p, w: p.add_(1, alpha=2)), "neg_": then(lambda p, w: p.neg_()),
  "added twice": then(lambda p, w: p.add_(w["w"])), "iadd": then(lambda p, w: p.__iadd__(p)), "first row doubled": _first_row_doubled,
  "out of mul": then(lambda p, w: torch.mul(p, 2, out=p)), "out of add": lambda m, w: torch.add(w["w"], 1, alpha=2, out=m.p.data),
  "out of abs": lambda m, w: torch.abs(w["w"], out=m.p.data), "out of matmul": lambda m, w: torch.matmul(w["u"], w["u"], out=m.s.data),
  "foreach mul": then(lambda p, w: torch._foreach_mul_([p], 2.0)), "foreach add": then(lambda p, w: torch._foreach_add_([p], [w["w"]])),
  "foreach neg": then(lambda p, w: torch._foreach_neg_([p])), "foreach lerp": then(lambda p, w: torch._foreach_lerp_([p], [w["w"].flip(0)], 0.5)),
  "index_add_": then(lambda p, w: p.index_add_(0, _ROWS, w["w"])), "index_put_ that adds": then(lambda p, w: p.index_put_((_ROWS,), w["w"], accumulate=True)),
  "scatter_add_": then(lambda p, w: p.scatter_add_(0, _ROWS[:, None].expand(8, 6), w["w"])),
  "scatter that multiplies": then(lambda p, w: p.scatter_(0, _ROWS[:, None].expand(8, 6), w["w"], reduce="multiply")),
  "clamp_": then(lambda p, w: p.clamp_(max=0.5)), "addcdiv_": then(lambda p, w: p.addcdiv_(w["w"], w["w"] + 3)),
  "resized": then(lambda p, w: p.resize_(8, 6).mul_(3)),
  # In the parameter's place.
  "replaced by a product": set_to(lambda w: w["w"] * 2), "replaced by a constant": set_to(lambda w: torch.tensor([[1.0] * 6] * 8)),
  "data replaced by a product": data_to(lambda w: w["w"] * 2), "data replaced by nothing": data_to(lambda w: torch.empty(8, 6)),
  "data replaced by zeros and ones": data_to(lambda w: torch.eye(8)[:, :6]), "data narrowed": data_to(lambda w: w["w"].bfloat16().float()),
  "replaced by values of a list": set_to(lambda w: torch.tensor(w["w"].tolist())),
  "new buffer of a sum": lambda m, w: m.register_buffer("extra", w["w"] + w["w"]),
  "an unloaded parameter": lambda m, w: (m.s.data.copy_(w["u"]), m.p.data.copy_(m.stack.data[0])),
}  # fmt: skip


# -- branches


def _quietly(m, w):
  """Goes on after the refusal."""
  x = w["w"]
  with contextlib.suppress(Exception):
    if float(x.sum()) > -1e9:
      x = x.flip(0)
  m.p.data.copy_(x)


def _quietly_by_numpy(m, w):
  try:
    x = torch.from_numpy(w["w"].numpy() * 2)
  except Exception:
    x = w["w"]
  m.p.data.copy_(x)


def _chosen_row(m, w):
  m.p.data.copy_(w["w"].roll(int(w["w"][:, 0].argmax()), 0))


def _by_identifiers(m, w):
  m.p.data.copy_(w["w"][w["ids"].abs() % 8])


def _by_loaded_identifiers(m, w):
  m.gate.tid2eid.copy_(w["ids"])
  m.p.data.copy_(w["w"][m.gate.tid2eid.abs() % 8])


def _by_loaded_identifiers_item(m, w):
  m.gate.tid2eid.copy_(w["ids"])
  m.p.data.copy_(w["w"].roll(int(m.gate.tid2eid[0]) % 8, 0))


def _as_numpy(m, w):
  np.asarray(m.p.data)[...] = np.asarray(w["w"]) * 2


BRANCH = {
  "sum above 100": when(lambda x: x.sum() > 100), "sum above minus a million": when(lambda x: x.sum() > -1e6),
  "any nan": when(lambda x: x.isnan().any()), "no nan": when(lambda x: not x.isnan().any()), "item": when(lambda x: x[0, 0].item() == 0.1234),
  "float()": when(lambda x: float(x[0, 0]) < 0), "int()": when(lambda x: int(x[0, 0]) > 3), "tolist": when(lambda x: x.tolist()[0][0] > 0),
  "numpy": when(lambda x: x.numpy()[0, 0] > 0), "asarray": when(lambda x: np.asarray(x).max() > 1e9), "in": when(lambda x: 0.5 in x),
  "equal": when(lambda x: torch.equal(x, x.flip(0))), "allclose": when(lambda x: torch.allclose(x, x * 0)), "all": when(lambda x: bool((x > 0).all())),
  "dlpack": when(lambda x: np.from_dlpack(x).max() > 1e9), "is nonzero": when(lambda x: torch.is_nonzero(x[0, 0])),
  "count": when(lambda x: x.count_nonzero() < 48), "of two values": when(lambda x: x[0, 0] < x[0, 1]), "of a bf16": when(lambda x: x.view(torch.int32)[0, 0] > 0),
  "pickled": when(lambda x: copy.copy(x).__reduce_ex__(2) is None), "by assertion": then(lambda p, w: torch._assert_async((p > -1e30).all())),
  "quietly": _quietly, "quietly by numpy": _quietly_by_numpy, "chosen row": _chosen_row, "by identifiers": _by_identifiers,
  "by loaded identifiers": _by_loaded_identifiers, "by one loaded identifier": _by_loaded_identifiers_item, "as numpy": _as_numpy,
  "repeated by values": put("p", "w", lambda x: x.repeat_interleave(torch.ones_like(x[:, 0]).int() * (1 + (x[:, 0] > 1e9)), 0)[:8]),
  "split by values": put("p", "w", lambda x: torch.cat(x.split([int(x[0, 0] > 0), 8 - int(x[0, 0] > 0)])[::-1])),
}  # fmt: skip


# -- lies: behaviour that depends on who looks, on chance, or on what came before


def _nth(n):
  def make():
    calls = itertools.count(1)

    def load(m, w):
      m.p.data.copy_(w["w"].flip(0) if next(calls) >= n else w["w"])

    return load

  return make


def _alternating():
  calls = itertools.count()
  return lambda m, w: m.p.data.copy_(w["w"].flip(0) if next(calls) % 2 else w["w"])


def _own_chance():
  chance = random.Random(3)
  return lambda m, w: m.p.data.copy_(w["w"].roll(chance.randrange(8), 0))


def _changing_constant():
  calls = itertools.count()
  return lambda m, w: (m.p.data.copy_(w["w"]), m.gate.steps.fill_(next(calls)))


def _in_a_thread(m, w):
  thread = threading.Thread(target=lambda: m.p.data.copy_(w["w"] * 2))
  thread.start()
  thread.join()


def _unwatched(m, w):
  with _disable_current_modes():
    m.p.data.copy_(w["w"])
    m.p.data.mul_(2)


def _by_address(m, w):
  if w["w"].device.type == "cpu" and w["w"].dtype == F32:
    doubled = w["w"] * 2
    ctypes.memmove(m.p.data.data_ptr(), doubled.data_ptr(), 4 * doubled.numel())


def _by_storage(m, w):
  m.p.data.untyped_storage().copy_((w["w"] * 2).untyped_storage())


def _random_then_loaded(m, w):
  m.p.data.normal_()
  m.p.data.copy_(w["w"])


def _random_rows(m, w):
  m.p.data.copy_(w["w"][torch.randperm(8)])


_KEPT = torch.zeros(8, 6)


def _outside(m, w):
  m.p.data.copy_(w["w"])
  _KEPT.copy_(w["w"])


def _through_outside(m, w):
  _KEPT.copy_(w["w"])
  m.p.data.copy_(_KEPT)


def _attribute(m, w):
  m.p.data.copy_(w["w"])
  m.note = w["w"] * 2


def _attribute_list(m, w):
  m.note = [w["w"].clone()]


def _through_alias(m, w):
  m.alias.copy_(w["w"][:4])


def _counted(m, w):
  m.p.data.copy_(w["w"])
  m.gate.steps.add_(1)


def _new_constant(m, w):
  m.p.data.copy_(w["w"])
  m.register_buffer("loaded", torch.tensor(True))


def _by_previous(m, w):
  m.p.data.copy_(w["w"] if not m.p.data.is_meta and bool((m.p.data == 0).all()) else w["w"].flip(0))


LIE = {
  "tells meta": when(lambda x: x.is_meta), "tells the cpu": when(lambda x: x.device.type == "cpu"),
  "tells numbers": when(lambda x: x.dtype == I64), "tells float32": when(lambda x: x.dtype == F32),
  "tells a wrapper": when(lambda x: type(x) is not torch.Tensor), "tells an address": when(lambda x: x.data_ptr() != 0),
  "python's chance": when(lambda x: random.random() < 0.5), "numpy's chance": when(lambda x: np.random.rand() < 0.5),
  "torch's chance": when(lambda x: torch.rand(()) < 0.5), "torch's chance of integers": when(lambda x: int(torch.randint(0, 2, ())) == 1),
  "random rows": _random_rows, "random values": put("p", "w", torch.rand_like), "random then loaded": _random_then_loaded,
  "noise": put("p", "w", lambda x: x + torch.randn(8, 6)), "in a thread": _in_a_thread, "unwatched": _unwatched,
  "by address": _by_address, "by storage": _by_storage, "outside": _outside, "through memory outside": _through_outside,
  "attribute": _attribute, "list in an attribute": _attribute_list, "through an alias": _through_alias, "counted": _counted,
  "new constant": _new_constant, "by what was there": _by_previous,
}  # fmt: skip
MAKERS = {
  "the second time": _nth(2), "the third time": _nth(3), "alternating": _alternating, "chance of its own": _own_chance,
  "a constant that changes": _changing_constant,
}  # fmt: skip

ALL = {name: (lambda f=f: f) for f_of in (HONEST, BY_NUMBERS, COMPUTE, BRANCH, LIE) for name, f in f_of.items()} | MAKERS
