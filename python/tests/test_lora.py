# SPDX-License-Identifier: Apache-2.0
"""Protects: adapters of PEFT's own modules are merged as PEFT merges them, and written as PEFT reads them."""

import json
import threading

import peft
import pytest
import reshard
import reshard.lora
import torch
import transformers
from lora_models import CONFIGS, LINEAR, SIZES
from reshard.engines.parts import Parts
from reshard.lora._folder import Folder, folders_of
from safetensors.torch import load_file

def _base(dtype=torch.float32):
  torch.manual_seed(1)
  config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=False)
  return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


def _adapted(base, **options):
  """A PEFT module whose factors are no zeros, and its config."""
  config = peft.LoraConfig(r=4, lora_alpha=6, task_type="CAUSAL_LM", **options)
  module = peft.get_peft_model(base, config)
  with torch.no_grad():
    for name, p in module.named_parameters():
      if ".lora_" in name or ".modules_to_save." in name:
        p.normal_(generator=torch.Generator().manual_seed(len(name)))
  return module, module.peft_config["default"]


def _held(module):
  return {name: p.detach() for name, p in module.named_parameters()}


def _merged_by_peft(module):
  return {name: p.detach() for name, p in module.merge_and_unload().named_parameters()}


def _sent(merge):
  """{name in the model: what a refit would send}, of layouts with one whole tensor under each name."""
  merge.merge()
  return {local.fragments[0].tensor: merge.tensors[local.name] for local in merge.layout.local(0)}


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_merged_as_peft_merges_them(name):
  module, config = _adapted(_base(), **CONFIGS[name])
  held = _held(module)
  before = {name: p.clone() for name, p in held.items()}
  sent = _sent(reshard.lora.Merge(reshard.of_dtensors(held), held, {"default": config}))
  assert all(torch.equal(held[name], p) for name, p in before.items())
  expected = _merged_by_peft(module)
  assert set(sent) == set(expected)
  changed = 0
  for weight, tensor in expected.items():
    torch.testing.assert_close(sent[weight], tensor, rtol=1e-6, atol=1e-6)
    changed += sent[weight].data_ptr() not in {p.data_ptr() for p in held.values()}
  assert changed == len({t.rsplit(".lora_", 1)[0] for t in held if ".lora_" in t})


def test_conv1d_of_gpt2_is_transposed():
  torch.manual_seed(1)
  base = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32))
  module, config = _adapted(base, target_modules=["c_attn"], fan_in_fan_out=True)
  held = _held(module)
  sent = _sent(reshard.lora.Merge(reshard.of_dtensors(held), held, {"default": config}))
  for weight, tensor in _merged_by_peft(module).items():
    torch.testing.assert_close(sent[weight], tensor, rtol=1e-6, atol=1e-6)


def test_sums_are_rounded_once():
  module, config = _adapted(_base(torch.bfloat16), target_modules=LINEAR)
  module.to(torch.bfloat16)
  held = _held(module)
  sent = _sent(reshard.lora.Merge(reshard.of_dtensors(held), held, {"default": config}))
  at = "base_model.model.model.layers.1.self_attn.v_proj"
  a, b = (held[f"{at}.lora_{kind}.default.weight"].double() for kind in "AB")
  exact = held[f"{at}.base_layer.weight"].double() + 6 / 4 * (b @ a)
  assert torch.equal(sent["model.layers.1.self_attn.v_proj.weight"], exact.to(torch.bfloat16))


@pytest.mark.parametrize("band", [1, 40, 33 * 8])
def test_weights_are_merged_in_bands(monkeypatch, band):
  module, config = _adapted(_base(), target_modules=["embed_tokens", "q_proj", "down_proj"])
  held = _held(module)
  whole = _sent(reshard.lora.Merge(reshard.of_dtensors(held), held, {"default": config}))
  whole = {name: tensor.clone() for name, tensor in whole.items()}
  monkeypatch.setattr("reshard.lora._merge._BAND", band)
  for name, tensor in _sent(reshard.lora.Merge(reshard.of_dtensors(held), held, {"default": config})).items():
    torch.testing.assert_close(tensor, whole[name], rtol=1e-6, atol=1e-6)


def test_several_adapters_are_added():
  module, config = _adapted(_base(), target_modules=LINEAR)
  module.add_adapter("other", peft.LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj"], init_lora_weights=False))
  held = _held(module)
  configs = dict(module.peft_config)
  sent = _sent(reshard.lora.Merge(reshard.of_dtensors(held), held, configs))
  expected = module.merge_and_unload(adapter_names=["default", "other"])
  for weight, tensor in expected.named_parameters():
    torch.testing.assert_close(sent[weight], tensor.detach(), rtol=1e-5, atol=1e-6)


def _cut(model, whole, ranks):
  """A layout that cuts tensors over ranks, factors and weights along different dimensions, and its tensors."""
  builder = reshard.LayoutBuilder("cut", model)
  tensors = [{} for _ in range(ranks)]
  for number, tensor in enumerate(model.tensors):
    dim = number % len(tensor.shape)
    for rank, bounds in enumerate(torch.arange(tensor.shape[dim]).chunk(ranks)):
      box = [(0, n) for n in tensor.shape]
      box[dim] = (int(bounds[0]), int(bounds[-1]) + 1)
      part = whole[tensor.name][tuple(slice(*b) for b in box)].contiguous()
      builder.add(
        [rank], tensor.name, list(part.shape), tensor.dtype, parts=[reshard.PlacedBox(tensor.name, box, [0] * len(box))]
      )
      tensors[rank][tensor.name] = part
  return builder.finish(), tensors


def test_ranks_merge_what_they_hold():
  module, config = _adapted(_base(), target_modules=LINEAR)
  held = _held(module)
  layout = reshard.of_dtensors(held)
  whole = {local.fragments[0].tensor: held[local.name] for local in layout.local(0)}
  expected = _sent(reshard.lora.Merge(layout, held, {"default": config}))
  cut, tensors = _cut(layout.model, whole, 3)
  groups, failures = reshard.local(3), []
  parts = [{} for _ in range(3)]

  def run(rank):
    try:
      merge = reshard.lora.Merge(cut, tensors[rank], {"default": config}, rank=rank, group=groups[rank])
      for _ in range(2):
        merge.merge()
      parts[rank] = {
        f.tensor: (tuple(slice(*b) for b in f.box), merge.tensors[t.name])
        for t in merge.layout.local(rank)
        for f in t.fragments
      }
      merge.close()
    except BaseException as error:  # noqa: BLE001 - asserted below
      failures.append(error)
      groups[rank].abort(str(error))

  threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not failures
  for rank in range(3):
    assert set(parts[rank]) == set(expected)
    for name, (at, tensor) in parts[rank].items():
      torch.testing.assert_close(tensor, expected[name][at], rtol=1e-6, atol=1e-6)


def test_modules_under_fsdp_are_taken_as_they_are():
  module, config = _adapted(_base(), target_modules=LINEAR)
  plain = _held(module)
  expected = _sent(reshard.lora.Merge(reshard.of_dtensors(plain), plain, {"default": config}))
  expected = {name: tensor.clone() for name, tensor in expected.items()}
  torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
  try:
    torch.distributed.fsdp.fully_shard(module, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    sharded = dict(module.named_parameters())
    assert all(isinstance(p, torch.distributed.tensor.DTensor) for p in sharded.values())
    sent = _sent(reshard.lora.Merge(reshard.of_dtensors(sharded), sharded, {"default": config}))
    for name, tensor in expected.items():
      local = sent[name].to_local() if hasattr(sent[name], "to_local") else sent[name]
      assert torch.equal(local, tensor), name
  finally:
    torch.distributed.destroy_process_group()


def test_ranks_without_a_share_keep_their_empty_tensors():
  sizes = {"x.weight": (6, 8), "x.lora_A.default.weight": (2, 8), "x.lora_B.default.weight": (6, 2)}
  model = reshard.Model.from_tensors("small", {name: (size, "float32") for name, size in sizes.items()})
  builder = reshard.LayoutBuilder("uneven", model)
  for rank in range(2):
    for name, size in sizes.items():
      box = [(0, n) for n in size]
      parts = [reshard.PlacedBox(name, box, [0, 0])] if rank == 0 else []
      builder.add([rank], name, list(size) if rank == 0 else [0, size[1]], "float32", parts=parts)
  layout = builder.finish()
  whole = {name: torch.ones(size) for name, size in sizes.items()}
  empty = {name: torch.ones(0, size[1]) for name, size in sizes.items()}
  groups, merged = reshard.local(2), {}

  def run(rank):
    merge = reshard.lora.Merge(
      layout, (whole, empty)[rank], {"default": {"lora_alpha": 2}}, rank=rank, group=groups[rank]
    )
    merge.merge()
    merged[rank] = {t.name: merge.tensors[t.name] for t in merge.layout.local(rank)}

  threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert torch.equal(merged[0]["x.weight"], torch.full((6, 8), 3.0))
  assert merged[1]["x.weight"].shape == (0, 8)


def test_copies_of_two_adapters_are_not_one_tensor():
  names = [f"base_model.model.head.modules_to_save.{adapter}.weight" for adapter in ("one", "two")]
  with pytest.raises(reshard.InvalidArgumentError, match="copies of two adapters, 'one' and 'two'"):
    reshard.of_dtensors({name: torch.ones(2, 2) for name in names})


def test_products_are_exact_whatever_a_trainer_has_set():
  module, config = _adapted(_base(), target_modules=LINEAR)
  held = _held(module)
  layout = reshard.of_dtensors(held)
  expected = {name: t.clone() for name, t in _sent(reshard.lora.Merge(layout, held, {"default": config})).items()}
  before = torch.get_float32_matmul_precision()
  torch.set_float32_matmul_precision("medium")
  try:
    with torch.autocast("cpu", dtype=torch.bfloat16):
      sent = _sent(reshard.lora.Merge(layout, held, {"default": config}))
    assert torch.get_float32_matmul_precision() == "medium"
  finally:
    torch.set_float32_matmul_precision(before)
  assert all(torch.equal(sent[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
  ("options", "said"),
  (
    ({"target_modules": LINEAR, "use_dora": True}, "DoRA"),
    ({"target_modules": LINEAR, "lora_bias": True}, "more than A and B"),
    ({"target_modules": ["q_proj"], "target_parameters": ["self_attn.v_proj.weight"]}, "target_parameters"),
  ),
  ids=("dora", "bias", "parameters"),
)
def test_adapters_that_are_more_than_a_and_b_are_refused(options, said):
  module, config = _adapted(_base(), **options)
  held = _held(module)
  with pytest.raises(reshard.UnsupportedError, match=said):
    reshard.lora.Merge(reshard.of_dtensors(held), held, {"default": config})


def test_what_does_not_fit_is_refused_by_name():
  module, config = _adapted(_base(), target_modules=["q_proj"])
  held = _held(module)
  layout = reshard.of_dtensors(held)
  with pytest.raises(reshard.InvalidArgumentError, match="'other'.*'default'"):
    reshard.lora.Merge(layout, held, {"other": config})
  with pytest.raises(reshard.InvalidArgumentError, match="lora_alpha"):
    reshard.lora.Merge(layout, held, {"default": {}})
  with pytest.raises(reshard.UnsupportedError, match="peft_type IA3"):
    reshard.lora.Merge(layout, held, {"default": {"peft_type": "IA3", "lora_alpha": 1}})
  gone = {k: v for k, v in held.items() if "layers.0.self_attn.q_proj.lora_B" not in k}
  with pytest.raises(reshard.InvalidArgumentError, match=r"lora_B of 'model.layers.0.self_attn.q_proj' is not"):
    reshard.lora.Merge(reshard.of_dtensors(gone), gone, {"default": config})
  at = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"
  codes = held | {at: torch.zeros(32, 32, dtype=torch.int8)}
  with pytest.raises(reshard.UnsupportedError, match="not into torch.int8"):
    reshard.lora.Merge(reshard.of_dtensors(codes), codes, {"default": config})
  cut, tensors = _cut(layout.model, {f.tensor: held[t.name] for t in layout.local(0) for f in t.fragments}, 2)
  with pytest.raises(reshard.InvalidArgumentError, match="is not whole on rank 0: pass the ranks' group"):
    reshard.lora.Merge(cut, tensors[0], {"default": config})


def _table_and_values(module):
  held = _held(module)
  layout = reshard.of_dtensors(held)
  values = {local.fragments[0].tensor: held[local.name] for local in layout.local(0)}
  return layout, values


def test_peft_reads_what_is_written(tmp_path):
  module, config = _adapted(_base(), target_modules=["embed_tokens", "q_proj", "down_proj"], rank_pattern={"q_proj": 2})
  layout, values = _table_and_values(module)
  said = {"default": reshard.lora.Adapter(tmp_path / "policy", config).said()}
  json.dumps(said)
  table = Parts(layout, reshard.lora.NAMES, {"default": reshard.lora.Adapter(tmp_path / "policy", config)}, None).table
  workers = [next(folders_of(said, table)) for _ in range(3)]
  for rank, folder in enumerate(workers):
    folder.mark("job/..", rank + 5)
  for folder in workers:
    folder.elect()
  assert [folder.writes for folder in workers] == [True, False, False]
  for folder in workers:
    folder.unmark()
  for step in ("write", "commit"):
    for folder in workers:
      if step == "write":
        folder.write(values)
        assert not (tmp_path / "policy/adapter_model.safetensors").exists()
      else:
        folder.commit()
  assert sorted(p.name for p in (tmp_path / "policy").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
  own = tmp_path / "peft"
  module.save_pretrained(own, save_embedding_layers=False)
  theirs, ours = (load_file(f / "adapter_model.safetensors") for f in (own, tmp_path / "policy"))
  assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)
  again = peft.PeftModel.from_pretrained(_base(), tmp_path / "policy")
  tokens = torch.arange(12).reshape(2, 6)
  assert torch.equal(again(tokens).logits, module(tokens).logits)


def test_parts_of_a_trainer_are_checked(tmp_path):
  module, config = _adapted(_base(), target_modules=["q_proj"])
  layout, _ = _table_and_values(module)
  adapter = reshard.lora.Adapter(tmp_path, config)
  weights = len(_base().state_dict())
  factors = [name for name in _held(module) if ".lora_" in name]
  assert len(Parts(layout, (), {"default": adapter}, None).table) == weights + len(factors)
  assert len(Parts(layout, reshard.lora.NAMES, {"default": adapter}, None).table) == len(factors)
  assert len(Parts(layout, (), None, {"default": config}).table) == weights
  alone = Parts(layout, ["*proj.weight", "*norm.weight", "*embed_tokens.weight", "lm_head.weight"], {"default": adapter}, None)
  assert len(alone.table) == weights and not alone.adapters
  some = Parts(layout, ["model.layers.0.*", reshard.lora.NAMES], {"default": adapter}, None)
  layer = [name for name in _base().state_dict() if name.startswith("model.layers.0.")]
  assert len(some.table) == weights + len(factors) and len(some.wanted) == len(layer) + len(factors)
  ordinary = Parts(layout, (), {}, None)
  assert len(ordinary.table) == weights + len(factors) and not ordinary.adapters
  residual = reshard.lora.Adapter(tmp_path, config.to_dict() | {"init_lora_weights": "pissa"})
  assert len(Parts(layout, (), {"default": residual}, None).table) == weights + len(factors)
  invalid, unsupported = reshard.InvalidArgumentError, reshard.UnsupportedError
  for arguments, kind, said in (
    (((), None, None), invalid, "holds the adapter 'default': pass adapters="),
    (((), {"default": adapter}, {"default": config}), invalid, "exclude each other"),
    (((), {"policy": adapter}, None), invalid, "'default'"),
    (("*.nothing", None, {"default": config}), invalid, r"no tensor's name matches '\*.nothing'"),
    ((["*.lora_A.*"], {"default": adapter}, None), unsupported, "some of the factors of the adapter 'default'"),
    (((), {"default": reshard.lora.Adapter("here", config)}, None), invalid, "not absolute"),
    (((), {"default": {"folder": "/x", "config": config.to_dict() | {"bias": "all"}}}, None), unsupported, "bias="),
    ((reshard.lora.NAMES, {"default": residual}, None), unsupported, r"\(pissa\) has changed the weights"),
  ):
    with pytest.raises(kind, match=said):
      Parts(layout, *arguments)


def test_a_folder_without_config_is_refused(tmp_path):
  folder = Folder({"folder": str(tmp_path), "config": None}, {})
  folder.mark("job", 0)
  with pytest.raises(reshard.InvalidArgumentError, match="adapter_config.json"):
    folder.elect()
  folder.unmark()
  assert list(tmp_path.iterdir()) == []


def test_embeddings_that_may_be_tied_are_refused():
  module, config = _adapted(_base(), target_modules=["embed_tokens"])
  held = {name: p for name, p in _held(module).items() if "lm_head" not in name}
  with pytest.raises(reshard.UnsupportedError, match="embed_tokens.*LM head"):
    reshard.lora.Merge(reshard.of_dtensors(held), held, {"default": config})
