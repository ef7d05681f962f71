# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other of their tensors is what they hold."""

import pytest
import reshard
from reshard import _collective
from reshard import _manifest as manifest
from reshard.engines.quantisation import Quantisation
from reshard.engines.trainer import layouts_of

_PAIRS = (
  ("qwen3-4b", "megatron:tp=2,pp=2"),
  ("qwen3-30b-a3b", "megatron:tp=2,ep=4,etp=1"),
  ("qwen3-30b-a3b", "vllm:tp=4,ep=4"),
  ("gpt-oss-20b", "vllm:tp=2"),
  ("qwen3-next-80b-a3b", "megatron:tp=2"),
  ("llama-3.1-8b", "fsdp:shard=3"),
  ("gemma-3-1b", "hf"),
)


def _held(layout, rank):
  return {
    t.name: (t.dtype, list(t.index_shape), t.map, sorted(map(repr, t.fragments)))
    for t in layout.local(rank)
  }


@pytest.mark.parametrize(("name", "text"), _PAIRS)
def test_a_layout_of_manifests_is_the_layout(name, text):
  layout = reshard.layout(text, reshard.open_model(name, layers=4))
  descriptions = {rank: manifest.describe(layout, rank) for rank in layout.ranks}
  model = manifest.model_of(manifest.table_of(layout.model))
  built = manifest.build("told", model, descriptions, omit=True)
  for rank in layout.ranks:
    assert _held(built, rank) == _held(layout, rank)


def _messages(layouts):
  """What ranks tell, those of one layout after those of the other."""
  return [
    {
      "holds": manifest.describe(layout.values, rank),
      "quant": (form := Quantisation.of_layout(layout)) and form.as_dict(),
    }
    for layout in layouts
    for rank in layout.ranks
  ]


@pytest.mark.parametrize("text", ["hf", "hf:quant=fp8_block", "megatron:tp=2,quant=mxfp8"])
def test_quantised_layouts_are_made_of_what_is_told(text):
  model = reshard.open_model("qwen3-30b-a3b", layers=1)
  mine = reshard.layout(text, model)
  engine = reshard.layout("vllm:tp=2,quant=fp8_channel,quant_grid=tensor,quant_method=modelopt", model)
  plain = manifest.model_of(manifest.table_of(model))
  source, (target,) = layouts_of(plain, _messages([mine, engine]), len(mine.ranks))
  assert source.quant_format == mine.quant_format and target.quant_format == "fp8_channel"
  for rank in mine.ranks:
    assert _held(source, rank) == _held(mine, rank)
  first = len(mine.ranks)
  for rank in engine.ranks:
    assert _held(target, first + rank) == _held(engine, rank)
    names = [t.file_name for t in target.local(first + rank)]
    assert sorted(names) == sorted(t.file_name for t in engine.local(rank))


def test_ranks_that_are_told_to_hold_two_formats_are_refused():
  model = reshard.open_model("qwen3-30b-a3b", layers=1)
  messages = _messages([reshard.layout("hf", model), reshard.layout("vllm:tp=2,quant=fp8_channel", model)])
  messages[1]["quant"] = None
  with pytest.raises(reshard.UnsupportedError, match="the engine's ranks hold different quantised"):
    layouts_of(manifest.model_of(manifest.table_of(model)), messages, 1)


def test_a_manifest_that_names_no_tensor_of_the_model_is_refused():
  model = reshard.Model.from_tensors("m", {"a": ([2], "float32")})
  part = {"tensor": 1, "box": [[0, 2]], "at": [0], "dims": [0], "gaps": [0]}
  entry = {"name": "x", "shape": [2], "dtype": "F32", "map": "identity", "padded": False}
  with pytest.raises(reshard.InvalidArgumentError, match="tensor 1 of 1"):
    manifest.build("told", model, {0: [{**entry, "parts": [part]}]})


def test_a_manifest_that_unpacks_to_too_much_is_refused(monkeypatch):
  monkeypatch.setattr(_collective, "MAX_BYTES", 100)
  with pytest.raises(ValueError, match="more than 100 bytes"):
    manifest.unpack(manifest.pack("x" * 1000))
