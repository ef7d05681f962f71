# SPDX-License-Identifier: Apache-2.0
"""Protects: a traced layout says where the engine's loader puts every element, in both ways of
tracing, or the trace is refused with the names. Real torch modules and transformers' own loader."""

import json
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import reshard  # noqa: E402
from reshard import tracing  # noqa: E402

METHODS = ("numbers", "recording")


def _parameter(*shape, dtype=torch.bfloat16):
  return torch.nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


class Engine(torch.nn.Module):
  """Every way in which loaders place weights, on rank `rank` of 2."""

  def __init__(self, rank):
    super().__init__()
    self.rank = rank
    self.qkv = _parameter(16, 8)
    self.transposed = _parameter(8, 8)
    self.interleaved = _parameter(16, 8)
    self.w13 = _parameter(4, 16, 8)
    self.embedding = _parameter(10, 8)
    self.repeated = _parameter(12)
    self.scale = _parameter(6, 8)
    self.norm = _parameter(8)
    self.centered = _parameter(8)
    self.a = _parameter(4, dtype=torch.float32)
    self.kernel = _parameter(6, 24, dtype=torch.float32)
    self.scalars = _parameter(4, dtype=torch.float32)
    self.stacked = _parameter(4, 8, 8)
    self.packed = _parameter(6, 8, dtype=torch.uint8)
    self.never_loaded = _parameter(3)
    self.register_buffer("bias", torch.zeros(4, dtype=torch.float32))
    self.tied = self.embedding

  def load_weights(self, weights):
    place = {name: getattr(self, f"_{name.split('.')[0]}") for name in WEIGHTS}
    for name, weight in weights:
      place[name](weight, *name.split(".")[1:])

  def _mine(self, weight, dim=0):
    size = weight.shape[dim] // 2
    return weight.narrow(dim, self.rank * size, size)

  def _q(self, w):
    self.qkv.data[:8].copy_(self._mine(w))

  def _k(self, w):
    self.qkv.data[8:12].copy_(self._mine(w))

  def _v(self, w):
    self.qkv.data.narrow(0, 12, 4).copy_(self._mine(w))

  def _t(self, w):
    self.transposed.data.copy_(self._mine(w, 1).t() if self.rank else self._mine(w, 1).T)

  def _gate(self, w):
    self.interleaved.data[0::2].copy_(self._mine(w))

  def _up(self, w):
    self.interleaved.data.view(8, 2, 8)[:, 1].copy_(self._mine(w))

  def _expert(self, w, expert, kind):
    first = 0 if kind == "gate" else 8
    self.w13.data[int(expert), first : first + 8].copy_(self._mine(w))

  def _embedding(self, w):
    begin, end = (0, 10) if self.rank == 0 else (10, 18)
    self.embedding.data[: end - begin].copy_(w[begin:end])
    self.embedding.data[end - begin :].fill_(0)

  def _repeated(self, w):
    self.repeated.data.copy_(w.repeat_interleave(2))

  def _scale(self, w):
    self.scale.data.copy_(w.repeat_interleave(2, 0).repeat_interleave(4, dim=1))

  def _norm(self, w):
    self.norm.data.copy_(w + 1.0)

  def _centered(self, w):
    self.centered.data.copy_(w - 1)

  def _a(self, w):
    self.a.data.copy_(-torch.exp(self._mine(w).float()))

  def _kernel(self, w):
    self.kernel.data.copy_(self._mine(w).reshape(6, 24))

  def _one(self, w, number):
    self.scalars.data[int(number)] = w

  def _fused(self, w):
    # [groups of (2 q, k, v) of 2, 8] -> stacked by kind
    groups = self._mine(w).view(4, 4, 2, 8)
    q, k, v = groups.split([2, 1, 1], dim=1)
    self.stacked.data.copy_(torch.cat([x.reshape(-1, 8) for x in (q, k, v)]).view(4, 8, 8))

  def _packed(self, w):
    self.packed.data.copy_(torch.stack([w.view(torch.uint8), w.view(torch.uint8).flip(0)])[0])

  def _bias(self, w):
    self.bias.copy_(w.squeeze(-1))

  def _dropped(self, w):
    pass


BF16, F32 = torch.bfloat16, torch.float32
WEIGHTS = {
  "q": ((16, 8), BF16),
  "k": ((8, 8), BF16),
  "v": ((8, 8), BF16),
  "t": ((8, 16), BF16),
  "gate": ((16, 8), BF16),
  "up": ((16, 8), BF16),
  **{f"expert.{e}.{kind}": ((16, 8), BF16) for e in range(4) for kind in ("gate", "up")},
  "embedding": ((18, 8), BF16),
  "repeated": ((6,), BF16),
  "scale": ((3, 2), BF16),
  "norm": ((8,), BF16),
  "centered": ((8,), BF16),
  "a": ((8,), BF16),
  "kernel": ((12, 3, 2, 4), F32),
  **{f"one.{i}": ((), F32) for i in range(4)},
  "fused": ((64, 8), BF16),
  "packed": ((6, 8), torch.float8_e4m3fn),
  "bias": ((4, 1), F32),
  "dropped": ((5,), F32),
}


def load(module, weights):
  module.load_weights(weights)


@pytest.mark.parametrize("method", METHODS)
def test_every_placement_is_found_and_proved_with_real_values(method):
  found = tracing.trace(Engine, load, WEIGHTS, ranks=2, method=method)
  assert found.method == method and found.unused == ["dropped"]
  assert found.untouched == {0: {"never_loaded": 3}, 1: {"never_loaded": 3}}
  assert tracing.probe(found.layout, Engine, load) == []
  found.layout.check()
  names = found.layout.slots_of(0)
  assert "never_loaded" not in names and "tied" not in names and len(names) == 15
  maps = {t.name: t.map for t in found.layout.local(1)}
  assert {n: m for n, m in maps.items() if m != "identity"} == {
    "a": "negated_exp",
    "norm": "plus_one",
    "centered": "minus_one",
  }
  padding = {t.name: t.padding for t in found.layout.local(1) if t.padding}
  assert padding == {"embedding": 16}


def test_both_ways_agree():
  layout = reshard.traced(Engine, load, WEIGHTS, ranks=2, method="recording")
  other = reshard.traced(Engine, load, WEIGHTS, ranks=2, method="numbers")
  assert reshard.diff(layout, other) == []


def test_a_wrong_layout_is_not_proved():
  layout = reshard.traced(Engine, load, WEIGHTS, ranks=2)

  class Other(Engine):
    def _gate(self, w):
      self.interleaved.data[0::2].copy_(self._mine(w).flip(0))

  said = tracing.probe(layout, Other, load)
  assert len(said) == 2 and "rank 0: 'interleaved'" in said[0]
  different = reshard.traced(Other, load, WEIGHTS, ranks=2)
  assert [d.name for d in reshard.diff(layout, different)] == ["interleaved"]


def test_a_saved_layout_reads_back(tmp_path):
  layout = reshard.traced(Engine, load, WEIGHTS, ranks=2)
  layout.save(tmp_path / "layout.json")
  again = reshard.layout(f"explicit:{tmp_path / 'layout.json'}", layout.model)
  assert reshard.diff(layout, again) == []
  moved = reshard.layout("explicit:layout.json,offset=4", layout.model, folder=tmp_path)
  assert moved.ranks == (4, 5)
  with pytest.raises(reshard.InvalidArgumentError, match="exists"):
    layout.save(tmp_path / "layout.json")


def test_a_plan_fills_a_traced_layout():
  layout = reshard.traced(Engine, load, WEIGHTS, ranks=2)
  plan = reshard.plan(reshard.layout("hf", layout.model), layout)
  assert plan.digest


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
  "change, operation",
  [
    (lambda w: w * 2, "mul"),
    (lambda w: w + w, "add"),
    (lambda w: torch.exp(w), "exp"),
    (lambda w: w + 0.5, "add"),
  ],
)
def test_other_computations_are_refused_by_name(method, change, operation):
  class Computes(Engine):
    def _norm(self, w):
      self.norm.data.copy_(change(w))

  with pytest.raises(tracing.TracingError, match=f"'norm'.*{operation}.*norm"):
    reshard.traced(Computes, load, WEIGHTS, method=method)


def test_a_computation_in_the_middle_of_a_shard_is_seen():
  """x + 1 of element i is no number of element i + 1."""

  class Shifts(torch.nn.Module):
    def __init__(self, rank):
      super().__init__()
      self.w = _parameter(4, 4)

  def load_shard(module, weights):
    for _, w in weights:
      module.w.data.copy_(w[4:8] + 1)

  for method in METHODS:
    layout = reshard.traced(Shifts, load_shard, {"w": ((16, 4), BF16)}, method=method)
    (local,) = layout.local(0)
    assert local.map == "plus_one" and local.fragments[0].box.origin == (4, 0)


def test_a_loader_that_sees_bytes_is_traced_by_numbers():
  class Copies(Engine):
    def _norm(self, w):
      self.norm.data.view(torch.uint8).copy_(w.view(torch.uint8))

  found = tracing.trace(Copies, load, WEIGHTS)
  assert found.method == "numbers"
  with pytest.raises(tracing.TracingError, match=r"'norm': the loader sees torch.bfloat16 as torch.uint8"):
    tracing.trace(Copies, load, WEIGHTS, method="recording")


def test_check_is_deprecated():
  with pytest.warns(DeprecationWarning, match="prove="):
    reshard.traced(Engine, load, WEIGHTS, ranks=2, check=True)


def test_exceptions_of_the_loader_arrive_whole():
  def fails(module, weights):
    for name, _ in weights:
      if name == "v":
        raise KeyError("no place for v")

  with pytest.raises(KeyError, match="no place for v"):
    reshard.traced(Engine, fails, WEIGHTS)


def test_a_shape_that_does_not_fit_is_the_loaders_own_error():
  for method in METHODS:
    with pytest.raises(RuntimeError, match="size of tensor"):
      reshard.traced(Engine, load, WEIGHTS | {"q": ((16, 4), BF16)}, method=method)


def test_wrong_arguments_are_named():
  with pytest.raises(reshard.InvalidArgumentError, match="method 'guess' is none of"):
    reshard.traced(Engine, load, WEIGHTS, method="guess")
  with pytest.raises(reshard.InvalidArgumentError, match=r"weights\['q'\]"):
    reshard.traced(Engine, load, WEIGHTS | {"q": 3})
  with pytest.raises(reshard.InvalidArgumentError, match="prove 'half' is none of"):
    reshard.traced(Engine, load, WEIGHTS, prove="half")
  with pytest.raises(TypeError, match=r"build\(0\) returned int"):
    reshard.traced(lambda rank: rank, load, WEIGHTS, method="recording")


def test_recording_needs_no_memory():
  class Huge(torch.nn.Module):
    def __init__(self, rank):
      super().__init__()
      self.w = torch.nn.ParameterList(
        torch.nn.Parameter(torch.empty(1 << 17, 1 << 15, dtype=BF16)) for _ in range(64)
      )

  def load_all(module, weights):
    for (_, w), parameter in zip(weights, module.w, strict=True):
      parameter.data.copy_(w[1 << 17 :].transpose(0, 1).contiguous().t())

  weights = {f"w{i}": ((1 << 18, 1 << 15), BF16) for i in range(64)}  # 1 TiB
  layout = reshard.traced(Huge, load_all, weights, method="recording", prove=False)
  assert layout.local_bytes(0) == 64 << 33


def test_the_package_does_not_import_torch():
  code = "import sys, reshard; assert 'torch' not in sys.modules; reshard.traced; assert 'torch' in sys.modules"
  subprocess.run([sys.executable, "-c", code], check=True)


# -- transformers

_SIZES = dict(
  vocab_size=120, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
  num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
  tie_word_embeddings=False, torch_dtype="bfloat16",
)  # fmt: skip
_KNOWN = {
  "llama": {},
  "mistral": {},
  "qwen2": {},
  "qwen3": {},
  "qwen3_moe": dict(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=1,
    mlp_only_layers=[], norm_topk_prob=True,
  ),
  "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
}  # fmt: skip


def _config(folder, model_type, more):
  transformers = pytest.importorskip("transformers")
  config = transformers.AutoConfig.for_model(model_type, **_SIZES | more)
  named = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__
  (folder / "config.json").write_text(
    json.dumps(config.to_dict() | {"architectures": [named], "model_type": model_type})
  )
  return folder / "config.json"


@pytest.mark.parametrize("model_type", _KNOWN)
def test_transformers_modules_are_as_the_family_fsdp_says(model_type, tmp_path, monkeypatch):
  from reshard.tracing import transformers as traced_transformers

  monkeypatch.setenv("RESHARD_CACHE", "off")
  model = reshard.open_model(_config(tmp_path, model_type, _KNOWN[model_type]))
  layout = traced_transformers.layout(tmp_path, weights=model)
  assert reshard.diff(layout, reshard.layout("fsdp:shard=1", model)) == []


# Architectures that no family knows.
_UNKNOWN = {
  "olmo2": {},
  "starcoder2": {},
  "phi3": dict(pad_token_id=0),
  "granite": {},
  "gemma2": {},
  "cohere": {},
  "stablelm": {},
  "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, tie_word_embeddings=True),
  "opt": dict(ffn_dim=64, word_embed_proj_dim=32, tie_word_embeddings=True),
}


@pytest.mark.parametrize("model_type", _UNKNOWN)
def test_architectures_without_a_family_are_traced_and_proved(model_type, tmp_path, monkeypatch):
  import transformers

  from reshard.tracing import transformers as traced_transformers

  monkeypatch.setenv("RESHARD_CACHE", "off")
  config = transformers.AutoConfig.from_pretrained(
    _config(tmp_path, model_type, _UNKNOWN[model_type]).parent
  )
  with torch.device("meta"):
    held = transformers.AutoModelForCausalLM.from_config(config)
  tied = set(held.state_dict()) - {name for name, _ in held.named_parameters()}
  weights = {n: t for n, t in held.state_dict().items() if n not in tied}
  build, load_it = traced_transformers.build_and_load(config)
  layout = reshard.traced(build, load_it, weights)
  assert tracing.probe(layout, build, load_it) == []
  assert len(layout.slots_of(0)) == len(weights)


class Fp8Engine(torch.nn.Module):
  """A linear layer in FP8 blocks of 128 and its scales, rank `rank` of 2; `wrong` puts scales
  elsewhere."""

  def __init__(self, rank, wrong=False):
    super().__init__()
    self.rank, self.wrong = rank, wrong
    self.weight = _parameter(256, 384, dtype=torch.float8_e4m3fn)
    self.weight_scale_inv = _parameter(2, 3, dtype=torch.float32)
    self.norm = _parameter(384)

  def load_weights(self, weights):
    for name, weight in weights:
      held = getattr(self, name.split(".")[-1] if "q_proj" in name else "norm")
      size = held.shape[0] if weight.dim() > 1 else 0
      mine = weight[self.rank * size : (self.rank + 1) * size] if size else weight
      held.data.copy_(mine.flip(0) if self.wrong and "scale" in name else mine)


_FP8_MODEL = {"q_proj.weight": ((512, 384), "bfloat16"), "norm.weight": ([384], "bfloat16")}


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_engine_is_traced_over_plain_values(method):
  model = reshard.Model.from_tensors("m", _FP8_MODEL)
  stored = reshard.layout("hf:quant=fp8_block", model)
  load = lambda module, weights: module.load_weights(weights)  # noqa: E731
  found = tracing.trace(Fp8Engine, load, stored, ranks=2, method=method)
  assert found.layout.quant_format == "fp8_block" and not found.files.quantised
  assert found.layout.model.digest == model.digest
  plan = reshard.plan(reshard.layout("hf", model), found.layout)
  assert plan.quantises and not reshard.plan(stored, found.layout).quantises
  assert tracing.probe(found.files, Fp8Engine, load) == []
  with pytest.raises(tracing.TracingError, match="'weight_scale_inv' has its scales elsewhere"):
    tracing.trace(lambda rank: Fp8Engine(rank, True), load, stored, ranks=2, method="numbers")


def test_weights_that_are_cut_cannot_be_loaded():
  model = reshard.Model.from_tensors("m", _FP8_MODEL)
  names = ["q_proj.weight"]
  cut = reshard.quantise_layout(reshard.layout("fsdp:shard=2", model), "fp8_channel", names)
  with pytest.raises(reshard.UnsupportedError, match="is not one whole tensor, as loaders are given"):
    tracing.trace(Fp8Engine, lambda module, weights: module.load_weights(weights), cut)


# -- what a module has beside its parameters


class _Viewed(torch.nn.Module):
  """As vLLM's Mamba mixers: a buffer is another view of a parameter. Until the load it holds what
  was in memory, which is something else in each module."""

  built = 0

  def __init__(self, rank):
    super().__init__()
    type(self).built += 1
    self.p = torch.nn.Parameter(torch.full((8, 1, 4), float(self.built)), requires_grad=False)
    self.register_buffer("view", self.p.view(8, 4), persistent=False)


def _into_parameter(module, weights):
  for _, weight in weights:
    module.p.copy_(weight)


def _into_both(module, weights):
  for _, weight in weights:
    module.p.copy_(weight)
    module.view.copy_(weight.view(8, 4))


def test_a_buffer_that_the_loader_leaves_alone_does_not_count():
  layout = reshard.traced(_Viewed, _into_parameter, {"w": ((8, 1, 4), torch.float32)})
  assert [t.name for t in layout.local(0)] == ["p"]
  assert tracing.probe(layout, _Viewed, _into_parameter) == []
  assert tracing.probe(layout, _Viewed, _into_both) == [
    "rank 0: 'view': depends on values, and the layout has it not"
  ]


def test_a_single_element_with_a_stride_is_proved():
  class Module(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.p = torch.nn.Parameter(torch.empty(1, 2), requires_grad=False)

    def load_weights(self, weights):
      for name, weight in weights:
        self.p[:, int(name)].copy_(weight)

  weights = {name: ((1,), torch.float32) for name in "01"}
  layout = reshard.traced(lambda rank: Module(), lambda module, given: module.load_weights(given), weights)
  assert len(layout.local(0)[0].fragments) == 2


def test_parameters_that_are_parts_of_a_weight_are_proved():
  class Module(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.p = torch.nn.Parameter(torch.empty(2, 3), requires_grad=False)
      self.q = torch.nn.Parameter(torch.empty(2, 3), requires_grad=False)

  def load(module, weights):
    for _, weight in weights:
      module.p.data, module.q.data = weight.chunk(2)

  layout = reshard.traced(lambda rank: Module(), load, {"w": ((4, 3), torch.float32)})
  assert [t.fragments[0].box[0] for t in layout.local(0)] == [(0, 2), (2, 4)]
