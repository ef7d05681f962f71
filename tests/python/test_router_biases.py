# SPDX-License-Identifier: Apache-2.0
"""Correction biases of routers, which some classes hold as buffers and others as parameters: what
the layout fsdp makes of them, against the sources of every class of transformers that has one.
"""

import importlib
import pathlib
import re

import pytest
import torch
import transformers

import folders

if int(transformers.__version__.split(".")[0]) < 5:
  pytest.skip("the layout is that of transformers 5", allow_module_level=True)

MODELS = pathlib.Path(transformers.__file__).parent / "models"
NAME = "model.layers.0.mlp.gate.e_score_correction_bias"
MADE = re.compile(r"self\.e_score_correction_bias = nn\.(Buffer|Parameter)\((.*)")
STRICT = re.compile(r"_keep_in_fp32_modules_strict = \[([^]]*)\]")


def classes():
  """(model_type, holds a buffer, in float32) of each class that has such a bias."""
  for source in sorted(MODELS.glob("*/modeling_*.py")):
    text = source.read_text()
    made = MADE.search(text)
    if made is None:
      continue
    start = text[made.start() : text.index("\n\n", made.start())]
    kept = any(
      "e_score_correction_bias" in names or "moe_statics" in names for names in STRICT.findall(text)
    )
    configuration = importlib.import_module(
      f"transformers.models.{source.parent.name}.configuration_{source.parent.name}"
    )
    types = {
      value.model_type
      for value in vars(configuration).values()
      if isinstance(value, type) and issubclass(value, transformers.PreTrainedConfig)
    }
    for model_type in sorted(t for t in types if t and t.split("_")[-1] not in ("vision", "audio")):
      if not model_type.endswith("_encoder"):
        yield model_type, made[1] == "Buffer", kept or "torch.float32" in start


CLASSES = sorted(set(classes()))


def test_there_are_classes_of_every_kind():
  assert len(CLASSES) > 30
  assert {(buffer, f32) for _, buffer, f32 in CLASSES} == {
    (True, True),
    (True, False),
    (False, True),
    (False, False),
  }


@pytest.mark.parametrize(("model_type", "buffer", "f32"), CLASSES)
def test_ranks_hold_the_bias_as_the_class_does(model_type, buffer, f32, tmp_path):
  tensors = {NAME: torch.randn(6).to(torch.bfloat16), "lm_head.weight": torch.zeros(4, 2)}
  config = {"architectures": ["NewForCausalLM"], "model_type": model_type}
  folder = folders.write(tmp_path / "hf", tensors, config)
  folders.command("convert", folder, tmp_path / "ranks", "--to", "fsdp:shard=2")
  held = folders.ranks(tmp_path / "ranks")
  want = tensors[NAME].to(torch.float32 if f32 else torch.bfloat16)
  for rank, have in held.items():
    here = want if buffer else want[3 * rank : 3 * rank + 3]
    assert torch.equal(have[NAME], here) and have[NAME].dtype == here.dtype


def test_of_a_class_that_is_not_known_it_is_refused_by_name(tmp_path):
  tensors = {NAME: torch.randn(6)}
  folder = folders.write(tmp_path / "hf", tensors, {"architectures": ["X"], "model_type": "new"})
  said = folders.command("convert", folder, tmp_path / "x", "--to", "fsdp:shard=2", fails=True)
  assert f"tensor '{NAME}' is a buffer in some classes" in said
  assert 'with model_type "new"' in said and "dtensor:FILE" in said
  folders.command("convert", folder, tmp_path / "same", "--to", "hf")
  folders.same(folders.read(tmp_path / "same"), tensors)
