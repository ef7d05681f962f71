# SPDX-License-Identifier: Apache-2.0
"""Layouts traced from vLLM's own loaders: equal to the closed form where a family has one, proved
with real values where none has, and quick at full size."""

import functools
import json
import pathlib
import resource

import pytest

reshard = pytest.importorskip("reshard")

import torch  # noqa: E402
import transformers  # noqa: E402
from models import MODELS  # noqa: E402
from reshard import tracing  # noqa: E402
from reshard.tracing import vllm as traced_vllm  # noqa: E402

_SIZES = (dict(), dict(tp=2), dict(tp=4), dict(tp=8), dict(tp=2, pp=2))
_EXPERT_SIZES = (dict(tp=4, ep=True), dict(tp=2, dp=2), dict(tp=2, dp=2, ep=True))
_EXPERTS = [name for name, config in MODELS.items() if any("experts" in key for key in config)]
_ROWS = [(name, sizes) for name in MODELS for sizes in _SIZES] + [
  (name, sizes) for name in _EXPERTS for sizes in _EXPERT_SIZES
]
# What vLLM's own classes cannot build at this size, or our family refuses: heads or groups that the
# ranks do not divide.
_REFUSED = {("qwen3-next", 8), ("gpt-oss", 8), ("gpt-oss-9", 8), ("nemotron", 8)}


def _named(row):
  return "-".join([row[0], *(f"{key}{value}" for key, value in row[1].items())])


def _notation(sizes, model):
  keys = [f"{key}={sizes[key]}" for key in ("tp", "pp", "dp") if key in sizes]
  if sizes.get("ep"):
    keys.append(f"ep={sizes.get('tp', 1) * sizes.get('dp', 1)}")
  if model == "nemotron":
    keys.append("router=float32")  # as vLLM has it without a kernel for BF16 routers
  return "vllm:" + ",".join([*keys, "experts=routed_experts"])


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
  monkeypatch.setenv("RESHARD_CACHE", "off")


@pytest.fixture
def config_of(tmp_path):
  def write(model):
    (tmp_path / "config.json").write_text(json.dumps(MODELS[model]))
    return tmp_path

  return write


@pytest.mark.parametrize("name, sizes", _ROWS, ids=map(_named, _ROWS))
def test_traced_is_the_closed_form_on_every_rank(name, sizes, config_of):
  if (name, sizes.get("tp", 1)) in _REFUSED:
    pytest.skip("ranks do not divide what vLLM or the family must divide")
  folder = config_of(name)
  model = reshard.open_model(folder / "config.json")
  found = traced_vllm.trace_vllm(folder, weights=model, method="recording", **sizes)
  assert reshard.diff(found.layout, reshard.layout(_notation(sizes, name), model)) == []


_BOTH = [(name, dict(tp=2)) for name in MODELS] + [
  (name, dict(tp=2, dp=2, ep=True)) for name in _EXPERTS
]


@pytest.mark.parametrize("name, sizes", _BOTH, ids=map(_named, _BOTH))
def test_numbers_and_recording_agree(name, sizes, config_of):
  folder = config_of(name)
  model = reshard.open_model(folder / "config.json")
  found = traced_vllm.trace_vllm(folder, weights=model, method="numbers", **sizes)
  assert found.method == "numbers"


_QUANTISED = [
  ("llama", "fp8_block", "fp8", dict(tp=2)),
  ("qwen3-moe", "fp8_block", "fp8", dict(tp=2, dp=2, ep=True)),
  ("llama", "fp8_channel", "compressed-tensors", dict(tp=4)),
  ("qwen3-moe", "mxfp4", "compressed-tensors", dict(tp=2, ep=True)),
  ("qwen3-moe", "nvfp4", "modelopt", dict(tp=2)),
  ("gpt-oss", "mxfp4", "mxfp4", dict(tp=2)),
]
# Its experts are indexed with one dimension more than files have: not as values.
_AS_FILES = ("gpt-oss",)


@pytest.mark.parametrize("name, quant, method, sizes", _QUANTISED)
def test_quantised_checkpoints_are_traced_and_proved(name, quant, method, sizes, checkpoint):
  folder = checkpoint(name, f"hf:quant={quant},quant_method={method}")
  weights = tracing.stored_tensors(folder) if name in _AS_FILES else None
  found = traced_vllm.trace_vllm(folder, weights=weights, **sizes)
  engine = traced_vllm.VllmRanks(traced_vllm.engine_config(folder, **sizes))
  assert tracing.probe(found.files, engine.build, engine.load) == []


_SMALL = dict(
  vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
  num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=128,
  tie_word_embeddings=False, dtype="bfloat16",
)  # fmt: skip
# Architectures that no family of ours knows.
_UNKNOWN = {
  "olmo2": {},
  "starcoder2": {},
  "phi3": dict(pad_token_id=0),
  "granite": {},
  "cohere": dict(tie_word_embeddings=True),
  "stablelm": {},
  "gpt2": dict(n_embd=256, n_layer=2, n_head=8, n_positions=128, tie_word_embeddings=True),
  "opt": dict(ffn_dim=512, word_embed_proj_dim=256, tie_word_embeddings=True),
  "gpt_neox": {},  # interleaves q, k and v of each head
  "gpt_bigcode": dict(n_embd=256, n_layer=2, n_head=8, n_inner=512, tie_word_embeddings=True),
  "ernie4_5": {},
  "mamba2": dict(num_heads=16, head_dim=32, expand=2, n_groups=4, state_size=32),
  "granitemoe": dict(num_local_experts=4),
  "hunyuan_v1_dense": dict(head_dim=32),
  "persimmon": {},
}


@functools.cache
def _unknown():
  """{architecture: (its config.json, {name: weight on the meta device})}. All at once, because vLLM
  changes classes of transformers when it serves them."""
  found = {}
  for model_type, more in _UNKNOWN.items():
    config = transformers.AutoConfig.for_model(model_type, **_SMALL | more)
    named = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__
    with torch.device("meta"):
      held = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = dict(held.named_parameters())  # as its checkpoint has them
    found[model_type] = json.dumps(config.to_dict() | {"architectures": [named]}), weights
  return found


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("model_type", _UNKNOWN)
def test_architectures_without_a_family_are_traced_and_proved(model_type, tp, tmp_path):
  config, weights = _unknown()[model_type]
  (tmp_path / "config.json").write_text(config)
  found = traced_vllm.trace_vllm(tmp_path, weights=weights, tp=tp)
  engine = traced_vllm.VllmRanks(traced_vllm.engine_config(tmp_path, tp=tp))
  assert found.unused == [] and tracing.probe(found.layout, engine.build, engine.load) == []


def test_a_published_235b_needs_no_memory_for_its_weights(tmp_path):
  """One rank of TP 8: 59 GB of parameters, from 470 GB of weights."""
  published = pathlib.Path(__file__).parents[2] / "examples/configs/qwen3-235b-a22b.json"
  (tmp_path / "config.json").write_text(published.read_text())
  model = reshard.open_model(tmp_path / "config.json")
  found = traced_vllm.trace_vllm(tmp_path, weights=model, tp=8, ranks=[3], method="recording")
  closed = reshard.layout("vllm:tp=8,experts=routed_experts", model)
  wrong = [d for d in reshard.diff(found.layout, closed) if 3 in d.ranks]
  assert wrong == []
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20
