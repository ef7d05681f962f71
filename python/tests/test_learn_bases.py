# SPDX-License-Identifier: Apache-2.0
"""Protects: a card that is learned from other small models than those by default says so, and is proved with such models again."""

import dataclasses
import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from reshard.learn.__main__ import checkpoints  # noqa: E402
from reshard.learn.models import tiny  # noqa: E402
from reshard.learn.models.bases import Base  # noqa: E402

TIED = Base("embeddings tied", flag="tie_word_embeddings")
ALL = [Base(), TIED, Base("four", ranks=4), Base("each", kv_heads=True), Base("newer", newer=True), Base("even", vocab=8)]


@pytest.mark.parametrize("base", ALL, ids=lambda base: base.said or "default")
def test_a_proof_tells_the_models_it_was_learned_from(base):
  proof = "tp=1; tp=2; with tie_word_embeddings flipped: the same"
  said = f"{base.said}: {proof}" if base.said else proof
  assert [one for one in ALL if one.begins(said)] == [base]


def test_small_models_are_as_their_base_says(tmp_path):
  def heads(base):
    return [(base.sizes(of).heads, base.sizes(of).kv_heads) for of in (*tiny.SEEN, tiny.UNSEEN)]

  assert heads(Base()) == [(8, 2), (12, 4), (16, 2)]
  assert heads(Base("four", ranks=4)) == [(8, 4), (12, 12), (16, 8)]
  assert heads(Base("each", kv_heads=True)) == [(8, 8), (12, 12), (16, 16)]
  assert [Base("even", vocab=8).sizes(of).vocab for of in tiny.SEEN] == [304, 336]
  assert Base("four steps", kernel=4).sizes(tiny.SEEN[1]) == dataclasses.replace(tiny.SEEN[1], kernel=4)
  for folder in checkpoints(tmp_path, "Qwen3ForCausalLM", base=TIED):
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True


def test_a_newer_decoder_has_the_keys_of_published_models():
  newer = Base("newer", newer=True)
  assert not newer.fits("Qwen3ForCausalLM") and not Base("gates", flag="no_such_flag").fits("Qwen3ForCausalLM")
  assert newer.fits("Mistral3ForConditionalGeneration")
  config = tiny.config_of("Mistral3ForConditionalGeneration", tiny.SEEN[0], decoder=newer.decoder("Mistral3ForConditionalGeneration"))
  assert config.text_config.model_type == "ministral3" and config.text_config.tie_word_embeddings
  assert config.text_config.num_hidden_layers == tiny.SEEN[0].layers
