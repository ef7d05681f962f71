# SPDX-License-Identifier: Apache-2.0
"""Protects: layouts by cards refuse a checkpoint that lacks a tensor, by its name, and convert what the class may lack
or the user leaves out; the learner says what belongs together, and no more than models show."""

import json
import os
import pathlib
import subprocess

import pytest

import reshard
from reshard.learn import card_text

transformers = pytest.importorskip("transformers", minversion="5.0")
torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from reshard.learn import complete  # noqa: E402
from reshard.learn.__main__ import checkpoint, completed  # noqa: E402
from reshard.learn.missing import prove_complete  # noqa: E402
from reshard.learn.models import tiny, variants  # noqa: E402

CARDS = pathlib.Path(__file__).parents[2] / "examples" / "cards"
PROGRAM = os.environ.get("RESHARD_BIN", "reshard")
SIZES = tiny.Sizes(4, 2, 24, 96, 160, 3, 210, 4, 40)


def card_of(framework, name):
  return json.loads((CARDS / framework / f"{name}.json").read_text())


def convert(*arguments):
  """What the program says of an error; empty if it converts."""
  done = subprocess.run([PROGRAM, "convert", *map(str, arguments)], capture_output=True, text=True)
  assert (done.returncode == 0) == (not done.stderr), done.stderr
  return done.stderr


@pytest.fixture(scope="module")
def olmoe(tmp_path_factory):
  return checkpoint(tmp_path_factory.mktemp("complete") / "olmoe", "OlmoeForCausalLM", SIZES)


@pytest.fixture
def lacking(olmoe, tmp_path):
  """Makes a copy of the checkpoint without some tensors, and with other keys in its config."""

  def make(*without, **keys):
    folder = tmp_path / "lacking"
    folder.mkdir(exist_ok=True)
    config = json.loads((olmoe / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))
    tensors = load_file(olmoe / "model.safetensors")
    left = {name: t for name, t in tensors.items() if not any(w in name for w in without)}
    assert len(left) < len(tensors) or not without
    save_file(left, folder / "model.safetensors", {"format": "pt"})
    return folder

  return make


O_PROJ = "model.layers.1.self_attn.o_proj.weight"


@pytest.mark.parametrize(
  ("without", "says"),
  [
    ((O_PROJ,), f"tensor '{O_PROJ}' is missing from the model\n"),
    (("model.norm.weight",), "tensor 'model.norm.weight' is missing from the model\n"),
    (("layers.1.mlp.gate.weight",), "tensor 'model.layers.1.mlp.gate.weight' is missing from the model\n"),
    (("layers.2.",), "tensor 'model.layers.2.input_layernorm.weight' is missing from the model, and 20 more are\n"),
    (("layers.0.mlp.experts.3.",), "tensor 'model.layers.0.mlp.experts.3.down_proj.weight' is missing from the model, and 2"),
    (("layers.2.mlp.experts.",), "tensor 'model.layers.2.mlp.experts.0.down_proj.weight' is missing from the model, and"),
  ],
)
def test_a_checkpoint_that_lacks_tensors_is_refused_by_the_name_of_the_first(lacking, tmp_path, without, says):
  folder = lacking(*without)
  for to in ("vllm:tp=2", "fsdp:shard=2"):
    assert says in convert(folder, tmp_path / "out", "--to", to)
    assert not (tmp_path / "out").exists()
  assert convert(folder, tmp_path / "hf", "--to", "hf") == ""


def test_what_is_there_is_converted(olmoe, tmp_path):
  for to in ("vllm:tp=2", "fsdp:shard=2"):
    assert convert(olmoe, tmp_path / to.partition(":")[0], "--to", to) == ""


def test_only_models_with_a_head_of_their_own_must_have_it(lacking, tmp_path):
  folder = lacking("lm_head.weight")
  assert "tensor 'lm_head.weight' is missing from the model\n" in convert(folder, tmp_path / "out", "--to", "vllm:tp=2")
  assert convert(folder, tmp_path / "fsdp", "--to", "fsdp:shard=2") == "", "as reward and embedding models"
  tied = lacking("lm_head.weight", tie_word_embeddings=True)
  assert convert(tied, tmp_path / "tied", "--to", "vllm:tp=2") == ""


def test_what_the_user_leaves_out_is_not_missing(olmoe, tmp_path):
  assert convert(olmoe, tmp_path / "ranks", "--to", "vllm:tp=2", "--ignore", O_PROJ) == ""
  assert convert(tmp_path / "ranks", tmp_path / "back", "--to", "hf") == "", "files are what they are"
  names = {t.name for t in reshard.open_model(tmp_path / "back").tensors}
  assert names == {t.name for t in reshard.open_model(olmoe).tensors} - {O_PROJ}
  assert f"tensor '{O_PROJ}' is missing" in convert(tmp_path / "ranks", tmp_path / "other", "--to", "vllm:tp=1")
  model = reshard.open_model(olmoe)
  reshard.plan(reshard.layout("fsdp:shard=2", model), reshard.layout("vllm:tp=2", model), only=[O_PROJ])


# Of each framework: models with experts in some layers, state spaces, towers, and heads that are tied.
SHIPPED = [
  ("vllm", "OlmoeForCausalLM"), ("vllm", "DeepseekV2ForCausalLM"), ("vllm", "Qwen2_5_VLForConditionalGeneration"),
  ("sglang", "Lfm2ForCausalLM"), ("sglang", "GPT2LMHeadModel"), ("transformers", "JambaForCausalLM"),
  ("transformers", "Gemma3ForConditionalGeneration"), ("megatron", "Ernie4_5_MoeForCausalLM"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "name"), SHIPPED)
def test_cards_that_ship_say_what_the_learner_says_of_them(framework, name):
  shipped = card_of(framework, name)
  made, said = completed(shipped, name)
  assert made["complete"] == shipped["complete"]
  noticed, of = map(int, said.split()[:3:2])
  assert 0 <= of - noticed <= 2, said


def test_a_card_that_asks_for_other_tensors_is_not_proved():
  models = variants.variants_of("OlmoeForCausalLM")
  card = card_of("vllm", "OlmoeForCausalLM")
  assert prove_complete(card, models).startswith("15 of 15 kinds")
  card["complete"][0] = {"all": ["lm_head.weight"], "must": "1"}
  with pytest.raises(complete.Incomplete, match="a model of the class is refused: .*'lm_head.weight' is missing"):
    prove_complete(card, models)
  card["complete"] = card["complete"][1:2]
  assert "8 of 15 kinds of tensors, not" in prove_complete(card, models)


def test_layers_are_not_counted_by_a_key_that_others_equal():
  """Of two keys with the same values, either may be the one that counts: neither is named."""

  def model(layers, twin):
    names = {f"model.layers.{i}.{part}.weight": (2,) for i in range(layers) for part in ("a", "b")}
    return variants.Variant({"model_type": "llama", "num_hidden_layers": layers, "num_blocks": twin}, names, True)

  card = {
    "card": {"framework": "vllm", "model_types": ["llama"]},
    "rules": [{"match": "model.layers.#.a.weight"}, {"match": "model.layers.#.b.weight"}],
  }
  both = {"front": "model.layers.#.", "all": ["a.weight", "b.weight"]}
  assert complete.complete_of(card, [model(n, n) for n in (2, 3, 4)]) == [both]
  told_apart = [model(2, 2), model(3, 3), model(4, 5)]
  assert complete.complete_of(card, told_apart) == [both | {"of": "(num_hidden_layers ?? 32)"}]
  with pytest.raises(complete.Incomplete, match="no rule matches"):
    complete.complete_of({**card, "rules": card["rules"][:1]}, told_apart)


def test_cards_are_written_with_an_entry_per_line():
  card = card_of("vllm", "OlmoeForCausalLM")
  text = card_text(card)
  assert text == (CARDS / "vllm" / "OlmoeForCausalLM.json").read_text() and json.loads(text) == card
  assert text.count("\n") == len(card["rules"]) + len(card["complete"]) + 5
