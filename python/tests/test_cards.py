# SPDX-License-Identifier: Apache-2.0
"""Protects: the layout cards of Megatron-Bridge say what the family says, for the classes that have both; and a card
serves a checkpoint without its framework. tests/vllm/test_cards.py compares cards with
vLLM itself, test_sglang_layouts.py with SGLang."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess

import pytest

import reshard

CARDS = pathlib.Path(__file__).parents[2] / "examples" / "cards"
PROGRAM = os.environ.get("RESHARD_BIN", "reshard")

# Framework, class, example, sizes.
BOTH = [
  ("megatron", "LlamaForCausalLM", "llama-3.1-8b", (dict(), dict(tp=8), dict(tp=2, pp=2, last=2), dict(cp=2, dp=3))),
  ("megatron", "Qwen3ForCausalLM", "qwen3-4b", (dict(tp=2), dict(tp=16), dict(tp=2, pp=2, last=2), dict(vocab_multiple=64))),
  ("megatron", "Qwen3MoeForCausalLM", "qwen3-30b-a3b", (
    dict(tp=8), dict(tp=4, ep=2, etp=2), dict(tp=2, ep=8, etp=1), dict(tp=2, pp=2, last=2, ep=4, dp=4),
  )),
]


def test_the_page_counts_them():
  page = (CARDS.parents[1] / "docs" / "cards.md").read_text()
  known = json.loads(run("models", "--json").stdout)["models"]
  families = {c["class"] for c in known if c["family"]}
  said = re.findall(
    r"^## (\w+)\n\n(\d+) classes have a card[^:]*: (\d+) [^,]*, and (\d+) ", page, re.M
  )
  assert [row[0] for row in said] == ["vLLM", "SGLang", "transformers", "Megatron"]
  readme = " ".join((CARDS.parents[1] / "README.md").read_text().split())
  shown = re.search(r"(\d+) classes of vLLM, (\d+) of SGLang, (\d+) of Megatron-Bridge, (\d+) of transformers\.", readme)
  assert shown and dict(zip(("vLLM", "SGLang", "Megatron", "transformers"), shown.groups(), strict=True)) == {
    framework: count for framework, count, *_ in said
  }
  for framework, *counts in said:
    names = {p.stem for p in (CARDS / framework.lower()).glob("*.json")}
    assert [len(names), len(names - families), len(names & families)] == list(map(int, counts))


def notation(framework, sizes):
  return f"{framework}:" + (",".join(f"{k}={v}" for k, v in sizes.items()) or "tp=1")


@pytest.mark.parametrize(("framework", "name", "example", "sizes"), BOTH, ids=["-".join(row[:2]) for row in BOTH])
def test_a_card_says_what_the_family_says(framework, name, example, sizes):
  card = (CARDS / framework / f"{name}.json").read_text()
  model = reshard.open_model(example, layers=6)
  for one in sizes:
    family = reshard.layout(notation(framework, one), model)
    assert reshard.diff(family, reshard.rules_layout(card, model, **one)) == []


STAGES = ["pp=2,vpp=2", "pp=4,vpp=2,tp=2,ep=4,etp=1", "layout=Et*3|t*2||t*3L,pp=2", "pp=2,dp=2,order=tp-cp-ep-pp-dp",
          "pp=2,dp=2,ep=2,order=tp-cp-ep-pp-dp", "pp=2,first=3"]  # fmt: skip


@pytest.mark.parametrize("text", STAGES)
def test_a_card_of_megatron_takes_its_keys_of_stages(text):
  card = (CARDS / "megatron" / "Qwen3MoeForCausalLM.json").read_text()
  model = reshard.open_model("qwen3-30b-a3b", layers=8)
  keys = {k: int(v) if v.isdigit() else v for k, v in (pair.split("=") for pair in text.split(","))}
  assert reshard.diff(reshard.layout("megatron:" + text, model), reshard.rules_layout(card, model, **keys)) == []


@pytest.mark.parametrize(("keys", "says"), [
  (dict(norms="separate"), "norms=separate: a card knows the modules of Transformer Engine"),
  (dict(tp=2, ep=3), "etp * ep must divide tp * cp * dp"),
  (dict(tp=64), "tp must divide the number of attention heads"),
  (dict(pp=3), "megatron"),
  (dict(lanes=3), "unknown key 'lanes'"),
])  # fmt: skip
def test_a_card_of_megatron_refuses_what_its_modules_do_not_hold(keys, says):
  card = (CARDS / "megatron" / "Qwen3MoeForCausalLM.json").read_text()
  with pytest.raises(reshard.Error, match=re.escape(says)):
    reshard.rules_layout(card, reshard.open_model("qwen3-30b-a3b", layers=8), **(dict(dp=2) | keys))


_DEFAULTS = {"rule": "balanced", "when": "1"}


def flips(rule):
  """What could be wrong in a rule: (what, the rule with it)."""
  parts = [rule, *rule.get("with", ())]
  for p, part in enumerate(parts):
    for c, cut in enumerate(part.get("cuts", ())):
      for what, cuts in flipped_cuts(cut):
        flipped = json.loads(json.dumps(rule))
        [flipped, *flipped.get("with", ())][p]["cuts"][c : c + 1] = cuts
        yield f"{what} in cut {c + 1} of part {p + 1}", flipped
  if "with" in rule:
    first = {k: v for k, v in rule.items() if k in ("match", "cuts", "each", "take", "pad")}
    rest = {k: v for k, v in rule.items() if k not in first and k != "with"}
    yield "another order", rule["with"][0] | rest | {"with": [first, *rule["with"][1:]]}
    yield "another stack", rule | {"stack": 1 - rule.get("stack", 0)}
  if "interleave" in rule:
    yield "not interleaved", {k: v for k, v in rule.items() if k != "interleave"}
    yield "more turns", rule | {"interleave": f"2 * {rule['interleave']}"}
  for key in ("each", "where", "name"):
    if key in rule:
      yield f"no {key}", {k: v for k, v in rule.items() if k != key}
  for where in rule.get("where", ()):
    staged = [{"rest": "first"}] if "renumber" not in where else [{"renumber": False}]
    for change in staged if "of" in where else [{"at": 0, "or_last": False}, {"at": -1}]:
      if not change.items() <= ({"or_last": False} | where).items():
        yield f"where {change}", rule | {"where": [where | change]}


def flipped_cuts(cut):
  """What could be wrong in a cut: (what, the cuts in its place)."""
  yield "no cut", []
  changes = {
    "another dim": {"dim": 1 - min(cut["dim"], 1)},
    "no repeats": {"rule": "balanced"},
    "another granule": {"granule": "extent"},
    "other axes": {"axes": cut["axes"][::-1]},
    "fewer axes": {"axes": cut["axes"][1:]},
    "always": {"when": "1"},
    "never": {"when": "0"},
  }
  for what, change in changes.items():
    if change.get("axes") != [] and not change.items() <= (_DEFAULTS | cut).items():
      yield what, [cut | change]


@pytest.mark.parametrize(("framework", "name", "example", "sizes"), BOTH, ids=["-".join(row[:2]) for row in BOTH])
def test_a_flipped_card_is_not_what_the_family_says(framework, name, example, sizes):
  card = json.loads((CARDS / framework / f"{name}.json").read_text())
  model = reshard.open_model(example, layers=5)
  families = [(one, reshard.layout(notation(framework, one), model)) for one in sizes]

  def says_the_same(flipped):
    text = json.dumps(flipped)
    try:
      return all(reshard.diff(family, reshard.rules_layout(text, model, **one)) == [] for one, family in families)
    except reshard.Error:
      return False

  assert says_the_same(card)
  names = [t.name for t in model.tensors]
  lived, tried = [], 0
  for i, rule in enumerate(card["rules"]):
    parts = [rule, *rule.get("with", ())]
    if "== 1" in rule.get("when", "") and "lm_head.weight" in names:
      continue  # of embeddings that are tied
    if rule.get("omit") or not any(_matches(part["match"], name) for part in parts for name in names):
      continue
    for what, flipped in flips(rule):
      if "where" in what and not any("pp" in one for one in sizes):
        continue
      tried += 1
      if says_the_same(card | {"rules": [*card["rules"][:i], flipped, *card["rules"][i + 1 :]]}):
        lived.append(f"{rule['match']}: {what}")
  assert tried > 20 and lived == []


def _matches(pattern, name):
  return re.fullmatch(re.escape(pattern).replace("\\#", r"\d+").replace("\\*", ".*"), name)


def olmoe(folder, **config):
  """A checkpoint of a class that no family knows, of two layers."""
  torch = pytest.importorskip("torch")
  save_file = pytest.importorskip("safetensors.torch").save_file
  h, heads, experts, width = 64, 4, 4, 32
  said = dict(architectures=["OlmoeForCausalLM"], model_type="olmoe", hidden_size=h, num_attention_heads=heads,
              num_key_value_heads=heads, num_hidden_layers=2, num_experts=experts, intermediate_size=width,
              vocab_size=96, tie_word_embeddings=False, dtype="bfloat16") | config  # fmt: skip
  shapes = {"model.embed_tokens.weight": (96, h), "model.norm.weight": (h,), "lm_head.weight": (96, h)}
  for layer in range(2):
    at = f"model.layers.{layer}."
    shapes |= {f"{at}self_attn.{x}_proj.weight": (h, h) for x in "qkvo"}
    shapes |= {f"{at}self_attn.{x}_norm.weight": (h,) for x in "qk"}
    shapes |= {f"{at}{x}_layernorm.weight": (h,) for x in ("input", "post_attention")}
    shapes[f"{at}mlp.gate.weight"] = (experts, h)
    for e in range(experts):
      for x, shape in (("gate", (width, h)), ("up", (width, h)), ("down", (h, width))):
        shapes[f"{at}mlp.experts.{e}.{x}_proj.weight"] = shape
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(said))
  generator = torch.Generator().manual_seed(0)
  save_file({n: torch.randn(s, generator=generator).bfloat16() for n, s in shapes.items()}, folder / "model.safetensors")
  return folder


def run(*arguments):
  return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)


def test_a_class_without_a_family_is_converted_by_its_card_and_back(tmp_path):
  folder = olmoe(tmp_path / "model")
  for command in (
    ("convert", folder, tmp_path / "ranks", "--to", "vllm:tp=2,ep=2,pp=2"),
    ("convert", tmp_path / "ranks", tmp_path / "back", "--to", "hf"),
    ("verify", folder, tmp_path / "back"),
  ):
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
  layout = reshard.layout("vllm:tp=2", reshard.open_model(folder))
  held = {t.name: t.shape for t in layout.local(1)}
  assert held["model.layers.1.mlp.experts.routed_experts.w13_weight"] == (4, 32, 64)
  assert held["model.layers.0.self_attn.qkv_proj.weight"] == (96, 64)
  assert held["lm_head.weight"] == (64, 64)


def test_a_card_places_experts_where_the_notation_says(tmp_path):
  model = reshard.open_model(olmoe(tmp_path / "model"))  # 4 experts in each of 2 layers
  (tmp_path / "map.json").write_text("[[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 3]]")

  def experts(text, layer=1):
    """The experts of each rank's tensor, in their order there."""
    layout = reshard.layout(text, model)
    name = f"model.layers.{layer}.mlp.experts.routed_experts.w2_weight".replace(
      "routed_experts.", "routed_experts." if text.startswith("vllm") else ""
    )
    held = ({t.name: t for t in layout.local(rank)}[name] for rank in range(len(layout.ranks)))
    return [[int(f.tensor.split(".")[5]) for f in one.fragments] for one in held]

  assert experts("vllm:tp=2,ep=2") == [[0, 1], [2, 3]]
  assert experts("vllm:tp=2,ep=2,placement=round_robin") == [[0, 2], [1, 3]]
  assert experts("vllm:tp=2,ep=2,redundant=2") == [[0, 1, 2], [3, 0, 1]]
  assert experts(f"vllm:tp=2,ep=2,expert_map={tmp_path}/map.json", 0) == [[0, 1, 2], [3, 0, 1]]
  assert experts(f"vllm:tp=2,ep=2,expert_map={tmp_path}/map.json", 1) == [[3, 2, 1], [0, 3, 3]]


def test_a_class_without_a_family_is_trained_by_megatron(tmp_path):
  """With dense layers and experts, in stages of which each counts its own layers, and back."""
  pytest.importorskip("transformers")
  from reshard.learn.__main__ import checkpoint
  from reshard.learn.models import tiny

  folder = checkpoint(tmp_path / "model", "DeepseekV2ForCausalLM", tiny.SEEN[0])
  layout = reshard.layout("megatron:tp=2,pp=2,ep=4,etp=1,dp=2", reshard.open_model(folder))
  assert len(layout.ranks) == 8
  first, last = ({t.name: t.shape for t in layout.local(rank)} for rank in (0, 7))
  assert first["decoder.layers.0.mlp.linear_fc1.weight"] == (192, 128)
  assert "decoder.layers.0.pre_mlp_layernorm.weight" not in first
  assert "decoder.layers.0.pre_mlp_layernorm.weight" in last
  assert last["decoder.layers.1.mlp.experts.linear_fc1.weight0"] == (128, 128)
  assert "decoder.layers.1.mlp.experts.linear_fc1.weight1" not in last
  assert last["output_layer.weight"] == (256, 128)
  comes_back(folder, tmp_path, "megatron:tp=2,pp=2,ep=4,etp=1,dp=2", "vllm:tp=2")


def comes_back(folder, work, *layouts):
  """A checkpoint goes through layouts, one after the other, and is the same byte for byte."""
  before = folder
  for i, layout in enumerate((*layouts, "hf")):
    done = run("convert", before, work / f"through{i}", "--to", layout)
    assert done.returncode == 0, done.stdout + done.stderr
    before = work / f"through{i}"
  done = run("verify", folder, before)
  assert done.returncode == 0, done.stdout + done.stderr


def small(folder, name, flipped=(), stored=None):
  """A small checkpoint of a class, and its tensors."""
  pytest.importorskip("transformers")
  from reshard.learn.__main__ import checkpoint
  from reshard.learn.models import tiny

  checkpoint(folder, name, tiny.SEEN[1], flipped, stored)
  return pytest.importorskip("safetensors.torch").load_file(folder / "model.safetensors")


def on_rank(folder, rank):
  return pytest.importorskip("safetensors.torch").load_file(folder / f"rank-{rank:05}.safetensors")


@pytest.mark.parametrize("form", ["transformers", "published"])
@pytest.mark.parametrize(("name", "prefix", "engine"), [
  ("Qwen3VLMoeForConditionalGeneration", "language_model.", ()),
  ("Qwen3_5MoeForCausalLM", "", ("vllm:tp=2",)),
])  # fmt: skip
def test_experts_are_trained_by_megatron_however_files_store_them(tmp_path, name, prefix, engine, form):
  torch = pytest.importorskip("torch")
  pytest.importorskip("transformers")
  from reshard.learn.models.stored import STORED

  model_type = json.loads((CARDS / "megatron" / f"{name}.json").read_text())["card"]["model_types"][0]
  stored = STORED[model_type][-1] if form == "published" else None
  tensors = small(tmp_path / "model", name, stored=stored)
  comes_back(tmp_path / "model", tmp_path, "megatron:tp=2,ep=4,etp=1,dp=4", *(engine if stored is None else ()))
  # Rank 1 is the second of four that share the experts: of eight, experts 2 and 3.
  at = f"model.{prefix}layers.1.mlp.experts."
  held = on_rank(tmp_path / "through0", 1)[f"{prefix}decoder.layers.1.mlp.experts.linear_fc1.weight1"]
  if f"{at}3.up_proj.weight" in tensors:
    whole = torch.cat([tensors[f"{at}3.{x}_proj.weight"] for x in ("gate", "up")])
  else:
    whole = tensors[f"{at}gate_up_proj"][3]
  assert held.shape == (240, 288)
  assert torch.equal(held, whole if whole.shape == held.shape else whole.T)


def test_a_learned_card_of_a_known_class_reads_the_numbers_of_its_config(tmp_path):
  """`n_routed_experts` is 8; a config without it would have 128."""
  small(tmp_path / "model", "Glm4MoeForCausalLM")
  card = (CARDS / "megatron" / "Glm4MoeForCausalLM.json").read_text()
  layout = reshard.rules_layout(card, reshard.open_model(tmp_path / "model"), tp=4, ep=4, etp=1)
  held = [t.name for t in layout.local(3) if "layers.1.mlp.experts.linear_fc1" in t.name]
  assert held == [f"decoder.layers.1.mlp.experts.linear_fc1.weight{i}" for i in (0, 1)]


def test_norms_over_all_heads_are_whole_and_take_a_kv_head_for_each_head(tmp_path):
  small(tmp_path / "few", "OlmoeForCausalLM")
  done = run("convert", tmp_path / "few", tmp_path / "refused", "--to", "megatron:tp=2")
  assert done.returncode != 0 and "learned from models with a KV head for each head" in done.stderr
  from reshard.learn.__main__ import checkpoint
  from reshard.learn.models import tiny

  sizes = tiny.SEEN[1]
  checkpoint(tmp_path / "model", "OlmoeForCausalLM", dataclasses.replace(sizes, kv_heads=sizes.heads))
  comes_back(tmp_path / "model", tmp_path, "megatron:tp=2,ep=4,etp=1,dp=2", "vllm:tp=4")
  held = on_rank(tmp_path / "through0", 1)
  assert held["decoder.layers.0.self_attention.k_layernorm.weight"].shape == (sizes.hidden,)
  assert held["decoder.layers.0.self_attention.linear_qkv.weight"].shape == (3 * sizes.hidden // 2, sizes.hidden)


def test_norms_over_all_heads_are_cut_with_the_heads(tmp_path):
  torch = pytest.importorskip("torch")
  tensors = small(tmp_path / "model", "MiniMaxM2ForCausalLM")
  comes_back(tmp_path / "model", tmp_path, "megatron:tp=4,pp=2,first=3,ep=2,etp=2", "vllm:tp=2")
  held, at = on_rank(tmp_path / "through0", 3), "self_attn.k_norm.weight"
  assert torch.equal(held["decoder.layers.0.self_attention.k_layernorm.weight"], tensors[f"model.layers.0.{at}"][120:])


def test_a_class_that_megatron_has_without_a_head_is_tied(tmp_path):
  small(tmp_path / "model", "Exaone4ForCausalLM", ("tie_word_embeddings",))
  comes_back(tmp_path / "model", tmp_path, "megatron:tp=2,pp=2,first=3", "vllm:tp=2")
  assert "output_layer.weight" in on_rank(tmp_path / "through0", 2)
  small(tmp_path / "untied", "Exaone4ForCausalLM")
  done = run("convert", tmp_path / "untied", tmp_path / "refused", "--to", "megatron:tp=2")
  assert done.returncode != 0 and "lm_head.weight" in done.stderr


def test_the_parts_of_a_state_space_layer_are_cut_one_by_one(tmp_path):
  torch = pytest.importorskip("torch")
  tensors = small(tmp_path / "model", "FalconH1ForCausalLM")
  comes_back(tmp_path / "model", tmp_path, "megatron:tp=4,pp=2,first=3")
  whole, held = tensors["model.layers.0.mamba.conv1d.weight"], on_rank(tmp_path / "through0", 1)
  config = json.loads((tmp_path / "model" / "config.json").read_text())
  inner, states = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
  quarters = [part.chunk(4)[1] for part in whole.split([inner, states, states])]
  assert torch.equal(held["decoder.layers.0.mamba_mixer.conv1d_weight"].reshape(-1), torch.cat(quarters).reshape(-1))


def test_layers_with_more_kv_heads_take_other_turns(tmp_path):
  torch = pytest.importorskip("torch")
  tensors = small(tmp_path / "model", "MiMoV2FlashForCausalLM")
  comes_back(tmp_path / "model", tmp_path, "megatron:tp=4,ep=2,etp=2")
  held = on_rank(tmp_path / "through0", 3)
  for layer, groups in ((0, 12), (1, 24)):  # of 24 heads; keys are 40 wide, values 16
    q, k, v = (tensors[f"model.layers.{layer}.self_attn.{part}_proj.weight"] for part in "qkv")
    turns = [torch.cat([part.chunk(groups)[i] for part in (q, k, v)]) for i in range(groups)]
    found = held[f"decoder.layers.{layer}.self_attention.linear_qkv.weight"]
    assert torch.equal(found, torch.cat(turns[groups * 3 // 4 :]))


def test_a_merger_is_cut_in_one_block_beside_gated_layers(tmp_path):
  torch = pytest.importorskip("torch")
  load = pytest.importorskip("safetensors.torch").load_file
  pytest.importorskip("transformers")
  from reshard.learn.__main__ import checkpoint
  from reshard.learn.models import tiny

  # Megatron-Bridge does not pad this class's vocabulary.
  checkpoint(tmp_path / "model", "Exaone4_5_ForConditionalGeneration", dataclasses.replace(tiny.SEEN[1], vocab=336))
  comes_back(tmp_path / "model", tmp_path, "megatron:tp=2,pp=2,first=3")
  weights, held = load(tmp_path / "model" / "model.safetensors"), on_rank(tmp_path / "through0", 1)
  whole = weights["model.visual.merger.mlp.0.weight"]
  assert torch.equal(held["vision_model.merger.linear_fc1.weight"], whole[len(whole) // 2 :])
  gate, up = (weights[f"model.visual.blocks.0.mlp.{part}_proj.weight"] for part in ("gate", "up"))
  half = torch.cat([gate[len(gate) // 2 :], up[len(up) // 2 :]])
  assert torch.equal(held["vision_model.decoder.layers.0.mlp.linear_fc1.weight"], half)


def test_the_heads_of_a_fused_tower_are_moved_apart_for_megatron(tmp_path):
  torch = pytest.importorskip("torch")
  tensors = small(tmp_path / "model", "Qwen3VLForConditionalGeneration")
  comes_back(tmp_path / "model", tmp_path, "megatron:tp=2", "vllm:tp=4")
  held = on_rank(tmp_path / "through0", 1)["vision_model.decoder.layers.1.self_attention.linear_qkv.weight"]
  heads = tensors["model.visual.blocks.1.attn.qkv.weight"].reshape(3, 20, 8, 160)  # q, k and v of each head
  assert torch.equal(held, heads[:, 10:].transpose(0, 1).reshape(240, 160))


@pytest.mark.parametrize(
  ("notation", "config", "said"),
  [
    ("vllm:tp=3", {}, "cannot be cut evenly into 3"),
    ("vllm:ep=2", {}, "ep must be 1 or tp \\* dp"),
    ("vllm:pp=2", {"tie_word_embeddings": True}, "embeddings are not tied"),
    ("vllm:tp=2", {"model_type": "olmoe2"}, "no card fits: OlmoeForCausalLM is known with model_type olmoe"),
    ("vllm:tp=2,vocab_multiple=32", {}, "unknown key 'vocab_multiple'"),
    ("vllm:tp=2,redundant=2", {}, "redundant experts and expert_map need ep above 1"),
    ("vllm:tp=2,ep=2,redundant=2,placement=round_robin", {}, "placement=round_robin excludes redundant"),
    ("vllm:tp=2,ep=2,redundant=1", {}, "ep=2 does not divide num_experts\\+redundant=5"),
    ("sglang:tp=2", {}, "needs a config.*traced:sglang,tp=2 asks the engine's own loader"),
  ],
)
def test_what_a_card_was_not_proved_for_is_refused(tmp_path, notation, config, said):
  model = reshard.open_model(olmoe(tmp_path / "model", **config))
  with pytest.raises(reshard.Error, match=said):
    reshard.layout(notation, model)
