# SPDX-License-Identifier: Apache-2.0
"""Protects: the layout cards of transformers, which `fsdp` uses for classes without a family, say what the families
say for the classes that have both, and what transformers' own modules and fully_shard hold at sizes that learning did
not see. `make models-test` proves every card."""

import json
import os
import pathlib
import subprocess

import pytest

import reshard
from reshard.learn import NoCard, card_text, learn, prove

transformers = pytest.importorskip("transformers", minversion="5.0")
torch = pytest.importorskip("torch")

from reshard.learn import transformers as teacher  # noqa: E402
from reshard.learn.__main__ import checkpoint  # noqa: E402
from reshard.learn.models import tiny  # noqa: E402

CARDS = pathlib.Path(__file__).parents[2] / "examples" / "cards" / "transformers"
PROGRAM = os.environ.get("RESHARD_BIN", "reshard")
transformers.logging.set_verbosity_error()


def card_of(name):
  return (CARDS / f"{name}.json").read_text()


@pytest.mark.parametrize(
  ("name", "example"),
  [
    ("LlamaForCausalLM", "llama-3.1-8b"),
    ("Qwen3MoeForCausalLM", "qwen3-30b-a3b"),
    ("MixtralForCausalLM", "mixtral-8x7b"),
    ("Gemma3ForCausalLM", "gemma-3-1b"),
    ("DeepseekV3ForCausalLM", "kimi-k2"),
    ("GptOssForCausalLM", "gpt-oss-20b"),
  ],
)
def test_a_card_says_what_the_family_says(name, example):
  model = reshard.open_model(example, layers=6)
  for sizes in (dict(shard=3), dict(shard=48), dict(shard=2, replicate=2)):
    keys = ",".join(f"{k}={v}" for k, v in sizes.items())
    family = reshard.layout(f"fsdp:{keys}", model)
    assert reshard.diff(family, reshard.rules_layout(card_of(name), model, **sizes)) == []


# Sizes that no card was learned from.
OTHER = (
  tiny.Sizes(4, 2, 24, 96, 160, 3, 210, 2, 40, 2, 12, 18, 16, 32, 56),
  tiny.Sizes(10, 5, 16, 160, 224, 7, 190, 10, 56, 5, 24, 28, 12, 80, 104),
  tiny.Sizes(6, 3, 20, 144, 176, 4, 222, 3, 72, 3, 18, 22, 24, 64, 88),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  made = {}

  def of(name):
    if name not in made:
      root = tmp_path_factory.mktemp(name)
      made[name] = [checkpoint(root / str(i), name, sizes) for i, sizes in enumerate(OTHER)]
    return made[name]

  return of


@pytest.mark.parametrize(
  "name", ["OlmoeForCausalLM", "OlmoHybridForCausalLM", "Gemma3ForConditionalGeneration"]
)
def test_a_card_predicts_modules_of_other_sizes(name, models):
  *folders, unseen = models(name)
  assert "shard=3,replicate=2 (unseen)" in prove(teacher, json.loads(card_of(name)), folders, unseen)


def separate(rule):
  """Has the rule cut each of its parts by itself."""
  del rule["together"]
  for part in rule["with"]:
    part["cuts"] = rule["cuts"]


@pytest.mark.parametrize(
  ("name", "expected"),
  [("OlmoHybridForCausalLM", {"cuts", "together", "stack"}), ("OlmoeForCausalLM", {"cuts", "stack", "each"})],
)
def test_a_flipped_card_is_caught(name, expected, models):
  *folders, unseen = models(name)
  card = json.loads(card_of(name))
  changes = {
    "cuts": lambda rule: rule.pop("cuts"),
    "together": lambda rule: separate(rule) if "stack" not in rule else rule["missing"],
    "stack": lambda rule: rule["with"] and rule.update(stack=1 - rule.get("stack", 0)),
    "each": lambda rule: rule.pop("each"),
  }
  caught = dict.fromkeys(changes, 0)
  for i, rule in enumerate(card["rules"]):
    for what, change in changes.items():
      flipped = json.loads(card_text(card))
      try:
        change(flipped["rules"][i])
      except KeyError:
        continue
      if caught[what] == 3:  # rules of one form
        continue
      with pytest.raises(NoCard):
        prove(teacher, flipped, folders, unseen)
        pytest.fail(f"{what} of {rule['match']}")
      caught[what] += 1
  assert {what for what, count in caught.items() if count} == expected


def test_a_class_without_a_family_is_sharded_as_its_modules_are(models, tmp_path):
  folder = models("OlmoeForCausalLM")[0]
  for command in (
    ("convert", folder, tmp_path / "ranks", "--to", "fsdp:shard=3"),
    ("convert", tmp_path / "ranks", tmp_path / "back", "--to", "hf"),
    ("verify", folder, tmp_path / "back"),
  ):
    done = subprocess.run([PROGRAM, *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
  layout = reshard.layout("fsdp:shard=3", reshard.open_model(folder))
  held = {t.name: t.shape for t in layout.local(0)}
  assert held["model.layers.0.mlp.experts.gate_up_proj"] == (1, 320, 96)
  assert held["lm_head.weight"] == (70, 96)


@pytest.mark.parametrize(
  ("notation", "said"),
  [
    ("fsdp:tp=2", "tp must be 1: the card knows no plan of tensor parallelism"),
    ("fsdp:shards=2", "unknown key 'shards'"),
  ],
)
def test_what_a_card_was_not_proved_for_is_refused(models, notation, said):
  model = reshard.open_model(models("OlmoeForCausalLM")[0])
  with pytest.raises(reshard.Error, match=said):
    reshard.layout(notation, model)


def test_a_class_under_the_name_that_fully_shard_gives_it_has_its_card(models, tmp_path):
  folder = models("OlmoeForCausalLM")[0]
  config = json.loads((folder / "config.json").read_text()) | {"architectures": ["FSDPOlmoeForCausalLM"]}
  (tmp_path / "config.json").write_text(json.dumps(config))
  (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
  held = {t.name for t in reshard.layout("fsdp:shard=2", reshard.open_model(tmp_path)).local(0)}
  assert "model.layers.0.mlp.experts.gate_up_proj" in held


def test_modules_of_release_4_are_the_checkpoints(models):
  model = reshard.open_model(models("OlmoeForCausalLM")[0])
  held = {t.name for t in reshard.layout("fsdp:transformers=4", model).local(0)}
  assert "model.layers.0.mlp.experts.0.gate_proj.weight" in held


def test_a_dtype_is_what_the_notation_says(models):
  model = reshard.open_model(models("OlmoeForCausalLM")[0])
  assert {t.dtype.name for t in reshard.layout("fsdp:shard=2,dtype=float32", model).local(0)} == {"f32"}
  assert {t.dtype.name for t in reshard.layout("fsdp:shard=2", model).local(0)} == {"bf16"}


def test_learning_says_why_there_is_no_card(models, tmp_path):
  """A module that fully_shard does not take, such as one with a parameter without dimensions."""
  folder, second, unseen = models("OlmoeForCausalLM")

  def layout_of(folder, sizes, ranks=None):
    if sizes.get("shard", 1) > 1:
      raise ValueError("fully_shard does not take it")
    return teacher.layout_of(folder, sizes, ranks)

  other = type("Other", (), {**vars(teacher), "layout_of": staticmethod(layout_of)})
  for name, value in vars(teacher).items():
    if callable(value) and name in teacher.__all__ and name != "layout_of":
      setattr(other, name, staticmethod(value))
  with pytest.raises(NoCard, match="shard=3: ValueError: fully_shard does not take it"):
    learn(other, [folder, second], unseen)
