# SPDX-License-Identifier: Apache-2.0
"""Protects: adapters of PEFT are merged into checkpoints as PEFT merges them, in every layout, and whatever is no
multiple of B A is refused by its name."""

import json
import os

import peft
import pytest
import reshard
import reshard.hf
import torch
import transformers
from lora_models import CONFIGS, LINEAR, SIZES
from safetensors.torch import load_file, save_file

def _base(folder, dtype=torch.bfloat16, **options):
  torch.manual_seed(1)
  config = transformers.LlamaConfig(**SIZES, **{"tie_word_embeddings": False, **options})
  base = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
  base.save_pretrained(folder)
  return base


def _adapter(base, folder, seed=0, **options):
  """Saves an adapter whose factors are no zeros; returns the module."""
  module = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=6, **options))
  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for name, p in module.named_parameters():
      if ".lora_" in name or ".modules_to_save." in name:
        p.normal_(generator=generator)
  module.save_pretrained(folder)
  return module


def _exact(module):
  """{name: weight after merging, in FP64, from the module's own parts}."""
  module = module.double()
  return {name: p.detach() for name, p in module.merge_and_unload().named_parameters()}


def _expect(folder, expected, dtype):
  """Each value is the exact one, rounded to dtype: at most one that F32's sum could not tell apart is another."""
  found = load_file(folder / "model.safetensors")
  assert set(found) == set(expected)
  for name, tensor in found.items():
    assert tensor.dtype == dtype
    assert (tensor != expected[name].to(dtype)).sum() <= 1, name
    torch.testing.assert_close(tensor.double(), expected[name], rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_checkpoints_are_merged_as_peft_merges_them(tmp_path, name, dtype):
  module = _adapter(_base(tmp_path / "base", dtype), tmp_path / "adapter", **CONFIGS[name])
  report = reshard.convert(tmp_path / "base", tmp_path / "out", "hf", merge=tmp_path / "adapter")
  if dtype == torch.float32:
    expected = _merged(module)
    found = load_file(tmp_path / "out/model.safetensors")
    assert set(found) == set(expected)
    for weight, tensor in expected.items():
      torch.testing.assert_close(found[weight], tensor, rtol=1e-6, atol=1e-6)
  else:
    _expect(tmp_path / "out", _exact(module), dtype)
  assert any("merged with adapters" in note for note in report.notes)
  assert any("replaced by those of adapters" in note for note in report.notes) == (name in ("a copy", "embeddings"))
  assert reshard.verify(tmp_path / "base", tmp_path / "out", merge=[tmp_path / "adapter"])
  assert not reshard.verify(tmp_path / "base", tmp_path / "out")


def _merged(module):
  return {name: p.detach() for name, p in module.merge_and_unload().named_parameters()}


def test_every_layout_gets_merged_weights(tmp_path):
  _adapter(_base(tmp_path / "base"), tmp_path / "adapter", target_modules=LINEAR)
  reshard.convert(tmp_path / "base", tmp_path / "merged", "hf", merge=tmp_path / "adapter")
  for number, to in enumerate(["vllm:tp=2", "megatron:tp=2,pp=2", "fsdp:shard=3", "vllm:tp=2,quant=fp8_channel"]):
    reshard.convert(tmp_path / "base", tmp_path / f"a{number}", to, merge=tmp_path / "adapter")
    reshard.convert(tmp_path / "merged", tmp_path / f"b{number}", to)
    files = sorted(p.name for p in (tmp_path / f"a{number}").glob("*.safetensors"))
    assert files
    for file in files:
      assert (tmp_path / f"a{number}" / file).read_bytes() == (tmp_path / f"b{number}" / file).read_bytes()


def test_conv1d_of_gpt2_is_transposed(tmp_path):
  torch.manual_seed(1)
  base = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32))
  base.save_pretrained(tmp_path / "base")
  module = _adapter(base, tmp_path / "adapter", target_modules=["c_attn"], fan_in_fan_out=True)
  reshard.convert(tmp_path / "base", tmp_path / "out", "hf", merge=tmp_path / "adapter")
  expected = _merged(module)
  found = load_file(tmp_path / "out/model.safetensors")
  for weight, tensor in found.items():
    name = weight if weight in expected else f"transformer.{weight}"
    torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-6)


def test_several_adapters_are_added_and_rounded_once(tmp_path):
  _adapter(_base(tmp_path / "base"), tmp_path / "one", 1, target_modules=LINEAR)
  _adapter(_base(tmp_path / "base"), tmp_path / "two", 2, target_modules=["q_proj"])
  reshard.convert(tmp_path / "base", tmp_path / "out", "hf", merge=[tmp_path / "one", tmp_path / "two"])
  at = "model.layers.1.self_attn.q_proj"
  exact = load_file(tmp_path / "base/model.safetensors")[f"{at}.weight"].double()
  for folder in ("one", "two"):
    factors = load_file(tmp_path / folder / "adapter_model.safetensors")
    a, b = (factors[f"base_model.model.{at}.lora_{kind}.weight"].double() for kind in "AB")
    exact += 6 / 4 * (b @ a)
  found = load_file(tmp_path / "out/model.safetensors")[f"{at}.weight"]
  assert (found != exact.to(torch.bfloat16)).sum() <= 1


def test_names_may_lack_the_prefix(tmp_path):
  base = _base(tmp_path / "base")
  _adapter(base.model, tmp_path / "adapter", target_modules=LINEAR)  # of the decoder alone: layers.0...
  reshard.convert(tmp_path / "base", tmp_path / "out", "hf", merge=tmp_path / "adapter")
  before, after = (load_file(tmp_path / f / "model.safetensors") for f in ("base", "out"))
  changed = {name for name in before if not torch.equal(before[name], after[name])}
  assert changed == {name for name in before if name.rsplit(".", 2)[-2] in LINEAR}


def test_loaded_weights_are_merged(tmp_path):
  _adapter(_base(tmp_path / "base"), tmp_path / "adapter", target_modules=LINEAR)
  reshard.convert(tmp_path / "base", tmp_path / "out", "hf", merge=tmp_path / "adapter")
  expected = load_file(tmp_path / "out/model.safetensors")
  loaded = reshard.hf.load(tmp_path / "base", "hf", merge=tmp_path / "adapter")
  assert set(loaded) == set(expected)
  assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.items())


def _edit(folder, **changes):
  path = folder / "adapter_config.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _rename(folder, old, new):
  path = folder / "adapter_model.safetensors"
  tensors = load_file(path)
  save_file({name.replace(old, new): tensor for name, tensor in tensors.items()}, path)


def _cut(folder):
  path = folder / "adapter_model.safetensors"
  save_file({n: t[:, :-1].contiguous() if ".lora_A." in n else t for n, t in load_file(path).items()}, path)


_REFUSED = {
  "DoRA": (lambda f: _edit(f, use_dora=True), "use_dora"),
  "changed base": (lambda f: _edit(f, init_lora_weights="pissa"), "'pissa'"),
  "another kind": (lambda f: _edit(f, peft_type="IA3"), "IA3"),
  "no alpha": (lambda f: _edit(f, lora_alpha=None), "lora_alpha"),
  "a factor alone": (lambda f: _rename(f, "0.self_attn.q_proj.lora_A", "1.self_attn.q_proj.lora_A"), "lora_B"),
  "another model": (lambda f: _rename(f, "layers.1.", "layers.7."), "layers.7."),
  "another shape": (_cut, r"\[4, 31\]"),
  "magnitudes": (lambda f: _rename(f, "lora_A.weight", "lora_magnitude_vector"), "lora_magnitude_vector"),
  "no weights": (lambda f: os.remove(f / "adapter_model.safetensors"), "adapter_model.safetensors"),
  "no config": (lambda f: os.remove(f / "adapter_config.json"), "adapter_config.json"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_is_no_multiple_of_the_factors_is_refused(tmp_path, name):
  _adapter(_base(tmp_path / "base"), tmp_path / "adapter", target_modules=["q_proj"])
  change, says = _REFUSED[name]
  change(tmp_path / "adapter")
  with pytest.raises(reshard.Error, match=says):
    reshard.convert(tmp_path / "base", tmp_path / "out", "hf", merge=tmp_path / "adapter")
  assert not list(tmp_path.glob("out*"))


def test_the_head_of_a_tied_model_is_refused(tmp_path):
  _adapter(_base(tmp_path / "base", tie_word_embeddings=True), tmp_path / "adapter", target_modules=["q_proj"])
  _rename(tmp_path / "adapter", "model.layers.0.self_attn.q_proj", "lm_head")
  with pytest.raises(reshard.InvalidArgumentError, match=r"lm_head\.weight.*lacks"):
    reshard.convert(tmp_path / "base", tmp_path / "out", "hf", merge=tmp_path / "adapter")


FACTORS = {"target_modules": ["embed_tokens"]}
A_COPY = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}


@pytest.mark.parametrize(
  ("options", "known"), [(FACTORS, True), (FACTORS, False), (A_COPY, True)], ids=["factors", "of no known class", "a copy"]
)
def test_tied_embeddings_are_refused(tmp_path, options, known):
  _adapter(_base(tmp_path / "base", tie_word_embeddings=True), tmp_path / "adapter", **options)
  if not known:
    path = tmp_path / "base/config.json"
    path.write_text(path.read_text().replace('"LlamaForCausalLM"', '"UnknownForCausalLM"'))
  with pytest.raises(reshard.UnsupportedError, match="embed_tokens.* LM head"):
    reshard.convert(tmp_path / "base", tmp_path / "out", "hf", merge=tmp_path / "adapter")


def test_quantised_weights_are_refused(tmp_path):
  _adapter(_base(tmp_path / "base"), tmp_path / "adapter", target_modules=["q_proj"])
  reshard.convert(tmp_path / "base", tmp_path / "fp8", "hf:quant=fp8_channel")
  with pytest.raises(reshard.UnsupportedError, match="q_proj"):
    reshard.convert(tmp_path / "fp8", tmp_path / "out", "hf", merge=tmp_path / "adapter")


def test_other_layouts_are_refused(tmp_path):
  _adapter(_base(tmp_path / "base"), tmp_path / "adapter", target_modules=["q_proj"])
  reshard.convert(tmp_path / "base", tmp_path / "ranks", "vllm:tp=2")
  with pytest.raises(reshard.UnsupportedError, match="Hugging Face"):
    reshard.convert(tmp_path / "ranks", tmp_path / "out", "hf", merge=tmp_path / "adapter")
  with pytest.raises(reshard.InvalidArgumentError, match="adapter"):
    reshard.open_model(tmp_path / "base/config.json", merge=tmp_path / "adapter")
