# SPDX-License-Identifier: Apache-2.0
"""Protects: adapters that Megatron-Bridge gives to Megatron-Core's modules have the values of PEFT's tensors, whatever
the modules are cut by, and merge into the weights to which Megatron-Bridge merges them."""

import contextlib

import adapter_rank
import converters
import pytest
import torch
import torch.distributed
from adapters import CanonicalLoRA, DoRA, LoRA, SharedLoRA, build_adapted
from building import build
from serving import run, serving
from test_modules import MODELS, STATE, keys_of
from test_of_modules import opened
from test_traced import bridge_of
from world import rank_of

import reshard
import reshard.lora
from reshard.live._megatron import of_descriptions
from reshard.live._modules import held_by, module_tensors, plain, values_of
from reshard.lora._modules import describe
from reshard.lora._modules import of_descriptions as adapted_of_descriptions
from reshard.megatron._pairs import Pair

RANK, ALPHA = 8, 24
MLA = ["linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj", "router"]
MAMBA = ["in_proj", "out_proj", "linear_qkv", "linear_fc1", "linear_fc2"]
CASES = [
  ("llama", "", LoRA, {}),
  ("llama", "tp=2", LoRA, {}),
  ("llama", "tp=4,pp=2", LoRA, {}),
  ("qwen3-moe", "tp=2,ep=2", LoRA, {}),
  ("qwen3-moe", "tp=2,ep=4,etp=1", LoRA, {}),
  ("qwen3-moe", "tp=2,ep=2", SharedLoRA, {}),
  ("qwen3-moe", "tp=2,ep=4,etp=1", SharedLoRA, {}),
  ("qwen3-moe", "etp=2,tp=2", SharedLoRA, {}),
  ("deepseek", "tp=2", LoRA, {"target_modules": MLA}),
  ("nemotron", "tp=2", LoRA, {"target_modules": MAMBA}),
  ("qwen2", "pp=2,vpp=2", LoRA, {}),
  ("llama", "pp=2", CanonicalLoRA, {}),
]


def worlds(name, text, kind, options):
  """Each rank's modules in turn, with its number."""
  keys = keys_of(text)
  state = {STATE[k]: v for k, v in keys.items() if k in STATE}
  world = max(keys.get("tp", 1), keys.get("ep", 1) * keys.get("etp", keys.get("tp", 1))) * keys.get("pp", 1)
  for rank in range(world):
    with rank_of(world, rank, **state):
      yield rank, build_adapted(MODELS[name], text, kind(dim=RANK, alpha=ALPHA, **options))


def wrappers(modules):
  for module in modules:
    for name, part in module.named_modules():
      if hasattr(part, "to_wrap"):
        yield name, part


def assembled(layout, ranks):
  """{tensor of the model: values}, of what ranks hold; holders of the same elements must agree."""
  shapes = {t.name: list(t.shape) for t in layout.model.tensors}
  found, seen = {}, {}
  for rank, tensors in ranks.items():
    for local in layout.local(rank):
      flat = tensors[local.name].reshape(-1).to(torch.float64)
      for f in local.fragments:
        whole = found.setdefault(f.tensor, torch.zeros(shapes[f.tensor], dtype=torch.float64))
        marks = seen.setdefault(f.tensor, torch.zeros(shapes[f.tensor], dtype=torch.bool))
        box = tuple(slice(*bounds) for bounds in f.box)
        part = flat.as_strided(whole[box].shape, f.strides, f.offset)
        assert torch.equal(whole[box][marks[box]], part[marks[box]]), f"{f.tensor} differs between holders"
        whole[box], marks[box] = part, True
  assert all(marks.all() for marks in seen.values())
  return found


def merged_by_bridge(part, factors):
  """A wrapped module's weights with the change that Megatron-Bridge's LoRAMerge adds, of its rank."""
  weights = {k: weight.detach().double() for k, weight in part.to_wrap._parameters.items() if k.startswith("weight")}
  if hasattr(part.adapter, "linear_in"):
    rows = next(iter(weights.values())).shape[0]
    return {key: weight + change_of(part.adapter, rows, factors) for key, weight in weights.items()}
  return {"weight": weights["weight"] + canonical_change_of(part, factors)}


def canonical_change_of(part, factors):
  changes = {key: change_of(adapter, None, factors) for key, adapter in part.adapter.items()}
  if "adapter_q" in changes:
    q, k, v = (changes[f"adapter_{x}"].t() for x in "qkv")
    return part._interleave_qkv(q, k, v).t()
  return torch.cat([changes["adapter_gate"], changes["adapter_up"]])


def change_of(adapter, rows, factors):
  name, rank, group = adapter.seen_as
  a, b = zip(*(factors[peer][name] for peer in group), strict=True)
  here = group.index(rank)
  whole_a = torch.cat(a) if a[0].shape[0] != adapter.dim else a[here]
  whole_b = b[here] if rows in (None, b[0].shape[0]) else torch.cat(b)
  return adapter.alpha / adapter.dim * (whole_b @ whole_a)


def factors_of(modules, rank):
  """{name of an adapter: (A, B)} of the present rank; adapters get their name, rank, and the ranks that share them."""
  found = {}
  for chunk, module in enumerate(modules):
    for name, part in module.named_modules():
      if hasattr(part, "linear_in"):
        group = torch.distributed.get_process_group_ranks(part.linear_in.tp_group)
        part.seen_as = (f"{chunk}.{name}", rank, group)
        found[part.seen_as[0]] = tuple(getattr(part, x).weight.detach().double() for x in ("linear_in", "linear_out"))
  return found


def described(name, text, kind, options):
  """Of all ranks: what they say, their tensors, and these with Megatron-Bridge's merged weights."""
  said, built, factors, tensors = [], {}, {}, {}
  for rank, modules in worlds(name, text, kind, options):
    said.append(describe(modules))
    built[rank], factors[rank], tensors[rank] = modules, factors_of(modules, rank), module_tensors(modules)
  merged = {rank: dict(of_rank) for rank, of_rank in tensors.items()}
  for rank, modules in built.items():
    for chunk, module in enumerate(modules):
      front = f"model{chunk}." if len(modules) > 1 else ""
      for wrapped, part in wrappers([module]):
        merged[rank] |= {f"{front}{wrapped}.to_wrap.{k}": v for k, v in merged_by_bridge(part, factors).items()}
  return said, tensors, merged


@pytest.mark.parametrize(("name", "text", "kind", "options"), CASES, ids=lambda value: getattr(value, "__name__", str(value))[:24])
def test_merged_weights_are_those_of_megatron_bridge(name, text, kind, options, tmp_path):
  said, tensors, merged = described(name, text, kind, options)
  model = opened(MODELS[name], tmp_path)
  layout, config = adapted_of_descriptions(said, model)

  def held(ranks):
    return {
      rank: {t.name: ranks[rank][t.name.partition("@")[0]] for t in layout.local(rank)} for rank in layout.ranks
    }

  ours, theirs = assembled(layout, held(tensors)), assembled(layout, held(merged))
  factors = reshard.lora._names.adapters_in(ours)["default"]
  modules = {part.module for part in factors.values()}
  assert len(factors) == 2 * len(modules) and len(modules) > 3
  for tensor, value in theirs.items():
    module = tensor.removesuffix(".weight")
    if module in modules:
      a, b = ours[f"{module}.lora_A.default.weight"], ours[f"{module}.lora_B.default.weight"]
      assert a.shape[0] == RANK and b.any()
      expected = ours[tensor] + reshard.lora.scale_of(config, module, RANK) * (b @ a)
      torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    else:
      assert torch.equal(value, ours[tensor])
  assert {module.rpartition(".")[2] for module in modules} == set(config["target_modules"])


@pytest.mark.parametrize(("name", "options"), [("llama", {}), ("nemotron", {"target_modules": MAMBA})])
def test_b_is_cut_as_the_rows_of_the_weight_are(name, options):
  """Without a model, too, where Megatron-Core's attributes say that B is one block."""
  fused = 0
  for _, modules in worlds(name, "tp=2", LoRA, options):
    held = {plain(one.whole): one for one in held_by(modules)}
    for whole, one in held.items():
      if whole.endswith((".linear_fc1.adapter.linear_out.weight", ".in_proj.adapter.linear_out.weight")):
        weight = held[whole.replace(".adapter.linear_out", "")]
        assert one.runs[0] == weight.runs[0]
        fused += len(one.runs[0]) > 1
  assert fused >= 2


def test_what_experts_share_on_one_rank_has_other_values_on_another():
  names = [
    {held.whole for held in held_by(modules) if ".experts.linear_fc1.adapter." in held.whole}
    for _, modules in worlds("qwen3-moe", "ep=2", SharedLoRA, {})
  ]
  assert len(names[0]) == len(names[1]) > 0 and not names[0] & names[1]
  assert all(name.endswith("[4:8]") for name in names[1])


def test_factors_have_the_names_of_peft(tmp_path):
  layout, _ = adapted_of_descriptions([said_by("llama", LoRA)], opened(MODELS["llama"], tmp_path))
  parts = reshard.lora._names.adapters_in(t.name for t in layout.model.tensors)["default"]
  front = "base_model.model.model.layers."
  assert {part.file_name for part in parts.values()} == {
    f"{front}{layer}.{module}_proj.lora_{x}.weight"
    for layer in range(4)
    for module in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
    for x in "AB"
  }


@contextlib.contextmanager
def adapted(name, kind, **options):
  with rank_of(1, 0):
    yield build_adapted(MODELS[name], "", kind(dim=RANK, alpha=ALPHA, **options))


def said_by(name, kind, **options):
  with adapted(name, kind, **options) as modules:
    return describe(modules)


def test_adapters_that_are_more_than_a_and_b_are_refused():
  with pytest.raises(reshard.UnsupportedError, match="weight_magnitude' is part of an adapter that is more than A and B"):
    said_by("llama", DoRA)
  with adapted("llama", LoRA) as modules, pytest.raises(reshard.UnsupportedError, match="SiLU between A and B"):
    next(part for _, part in wrappers(modules)).adapter.activation = torch.nn.SiLU()
    describe(modules)


def test_adapters_that_a_module_stacks_are_refused_by_name(tmp_path):
  said = said_by("qwen3-moe", SharedLoRA)
  for held in said["held"]:
    if ".experts.linear_fc1.adapter." in held[0]:
      held[3], held[4] = [8, *held[3]], [None, *held[4]]
  with pytest.raises(reshard.UnsupportedError, match=r"experts.linear_fc1.adapter.*' \[8, 8, 32\] is no factor of a single"):
    adapted_of_descriptions([said], opened(MODELS["qwen3-moe"], tmp_path))


def test_a_factor_without_the_other_is_named(tmp_path):
  said = said_by("llama", LoRA)
  said["held"] = [held for held in said["held"] if held[1] != "decoder.layers.2.mlp.linear_fc2.adapter.linear_out.weight"]
  with pytest.raises(reshard.InvalidArgumentError, match=r"linear_fc2.adapter.linear_in.weight' has no '.*linear_out"):
    adapted_of_descriptions([said], opened(MODELS["llama"], tmp_path))


def test_modules_with_and_without_adapters_are_told_apart(tmp_path):
  model = opened(MODELS["llama"], tmp_path)
  with adapted("llama", LoRA) as modules:
    said = {"held": [held.pack() for held in held_by(modules)], "keys": values_of(modules)}
  with pytest.raises(reshard.UnsupportedError, match=r"call reshard.lora.of_modules\(\)"):
    of_descriptions([said], model)
  bare = said_by("llama", LoRA, target_modules=["linear_of_nobody"])
  with pytest.raises(reshard.InvalidArgumentError, match=r"no module has an adapter"):
    adapted_of_descriptions([bare], model)


@pytest.mark.parametrize("kept", [False, True], ids=["wrapped", "names kept"])
def test_an_adapter_that_the_target_of_a_swap_lacks_is_not_dropped(kept):
  with adapted("llama", LoRA) as modules:
    source = [held.pack() for held in held_by(modules)]
  if kept:  # modules of torch keep the names of their weights
    source = [[plain(x).replace(".adapter.", ".") if isinstance(x, str) else x for x in held] for held in source]
  with rank_of(1, 0):
    target = [held.pack() for held in held_by(build(MODELS["llama"], ""))]
  with pytest.raises(reshard.UnsupportedError, match=r"linear_in.weight' of the source belongs to an adapter"):
    Pair.of([{"source": source, "target": target, "buffers": []}])
  assert Pair.of([{"source": source, "target": source, "buffers": []}]).ignored == ()


def test_ranks_and_alphas_that_differ_are_patterns_of_the_config(tmp_path):
  said = said_by("llama", LoRA)
  name = "decoder.layers.1.self_attention.linear_proj.adapter.linear_in.weight"
  said["alphas"][name] = 12.0
  _, config = adapted_of_descriptions([said], opened(MODELS["llama"], tmp_path))
  module = "model.layers.1.self_attn.o_proj"
  assert config["lora_alpha"] == ALPHA and list(config["alpha_pattern"].values()) == [12.0]
  assert reshard.lora.scale_of(config, module, RANK) == 12 / RANK
  assert reshard.lora.scale_of(config, module.replace(".1.", ".2."), RANK) == ALPHA / RANK


def test_the_mappings_of_a_bridge_take_the_place_of_a_family(tmp_path):
  known = opened(MODELS["llama"], tmp_path)
  bare = reshard.Model.from_tensors("bare", {t.name: (t.shape, t.dtype.name) for t in known.tensors})
  with adapted("llama", LoRA) as modules:
    said = describe(modules, bare, bridge_of(converters.bridges()["llama"], MODELS["llama"].hf))
  with pytest.raises(reshard.UnsupportedError, match=r"call reshard.lora.of_modules\(\)"):
    of_descriptions([said], bare)
  layout, config = adapted_of_descriptions([said], bare)
  of_family, same = adapted_of_descriptions([said_by("llama", LoRA)], known)
  assert [str(difference) for difference in reshard.diff(layout, of_family)] == [] and config == same


def test_alphas_that_differ_between_ranks_are_refused(tmp_path):
  said = said_by("llama", LoRA)
  other = said | {"alphas": {name: 12.0 for name in said["alphas"]}}
  with pytest.raises(reshard.InvalidArgumentError, match="is 24 on some ranks, 12 on others"):
    adapted_of_descriptions([said, other], opened(MODELS["llama"], tmp_path))


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  with serving(adapter_rank.serve, 2, tmp_path_factory.mktemp("store")) as pipes:
    yield pipes


@pytest.mark.parametrize(("name", "text"), [("llama", "tp=2"), ("qwen3-moe", "ep=2")])
def test_a_trainer_merges_on_the_way(processes, tmp_path, name, text):
  opened(MODELS[name], tmp_path)
  (before, after, config), _ = run(processes, "merged", tmp_path, name, text)
  changed = 0
  for tensor, value in after.items():
    module = tensor.removesuffix(".weight")
    if f"{module}.lora_A.default.weight" in before:
      a, b = (before[f"{module}.lora_{x}.default.weight"].float() for x in "AB")
      change = reshard.lora.scale_of(config, module, RANK) * (b @ a)
      torch.testing.assert_close(value, (before[tensor].float() + change).bfloat16(), rtol=2**-7, atol=1e-6)
      changed += 1
    else:
      assert torch.equal(value, before[tensor])
  assert len(after) + 2 * changed == len(before) and changed > 10


def test_what_is_wrong_on_one_rank_is_told_to_all(processes, tmp_path):
  opened(MODELS["llama"], tmp_path)
  first, second = run(processes, "found_wrong", tmp_path, "llama")
  assert second == "InvalidArgumentError: module 0: a int is no module of torch"
  assert first == f"InvalidArgumentError: lora.of_modules: rank 1: {second.partition(': ')[2]}"
