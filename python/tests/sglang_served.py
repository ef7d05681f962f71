# SPDX-License-Identifier: Apache-2.0
"""Adapters and draft models that tests serve: what a trainer holds of them, and what a worker must hold after an
update: what SGLang itself makes of the same values.

A worker (`sglang_process.Worker`, `sglang_real.Worker`) has `model`, `drafts` and `manager`, and makes others."""

import json
import pathlib

import torch

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
#: By the names of the trainer: those of requests, and what PEFT calls their config.
ADAPTERS = {
  "default": ("policy", {"r": 4, "lora_alpha": 8, "target_modules": LINEAR}),
  "second": ("critic", {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "k_proj", "v_proj", "lm_head", "embed_tokens"]}),
}
DRAFTS = ("eagle", "eagle3", "mtp", "small")
#: Rows of the head of EAGLE-3's draft model.
HOT = 40


def _layer(config, prefix, inputs):
  width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
  heads, groups = config.num_attention_heads * dim, config.num_key_value_heads * dim
  return {
    f"{prefix}self_attn.q_proj.weight": (heads, inputs), f"{prefix}self_attn.k_proj.weight": (groups, inputs),
    f"{prefix}self_attn.v_proj.weight": (groups, inputs), f"{prefix}self_attn.o_proj.weight": (width, heads),
    f"{prefix}mlp.gate_proj.weight": (inner, width), f"{prefix}mlp.up_proj.weight": (inner, width),
    f"{prefix}mlp.down_proj.weight": (width, inner), f"{prefix}post_attention_layernorm.weight": (width,),
  }  # fmt: skip


def draft_shapes(kind, config):
  """{name in the draft model's checkpoint: shape}"""
  width, words = config.hidden_size, config.vocab_size
  if kind == "eagle":
    return _layer(config, "layers.0.", width) | {
      "embed_tokens.weight": (words, width), "fc.weight": (width, 2 * width), "fc.bias": (width,),
    }  # fmt: skip
  if kind == "eagle3":
    return _layer(config, "midlayer.", 2 * width) | {
      "midlayer.input_layernorm.weight": (width,), "midlayer.hidden_norm.weight": (width,), "norm.weight": (width,),
      "fc.weight": (width, 3 * width), "lm_head.weight": (HOT, width),
    }  # fmt: skip
  if kind == "mtp":
    prefix = "model.mtp_layers.0."
    rows = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
    return (
      _layer(config, prefix, width)
      | {f"{prefix}self_attn.{x}_proj.bias": (n * config.head_dim,) for x, n in rows.items()}
      | {f"{prefix}{x}_layernorm.weight": (width,) for x in ("token", "hidden", "final", "input")}
      | {f"{prefix}input_proj.weight": (width, 2 * width)}
      | {"model.embed_tokens.weight": (words, width), "lm_head.weight": (words, width)}
    )
  assert kind == "small"
  return _layer(config, "model.layers.0.", width) | {
    "model.layers.0.input_layernorm.weight": (width,), "model.norm.weight": (width,),
    "model.embed_tokens.weight": (words, width), "lm_head.weight": (words, width),
  }  # fmt: skip


def factor_shapes(key, config, r=None):
  """{name in the trainer: shape} of an adapter's factors."""
  _, said = ADAPTERS[key]
  r = said["r"] if r is None else r
  width, inner, words = config.hidden_size, config.intermediate_size, config.vocab_size
  sizes = {name: shape for name, shape in _layer(config, "", width).items() if len(shape) == 2}
  found = {}
  for layer in range(config.num_hidden_layers):
    for name, (rows, columns) in sizes.items():
      module = name.removesuffix(".weight")
      if module.rpartition(".")[2] in said["target_modules"]:
        path = f"base_model.model.model.layers.{layer}.{module}"
        found[f"{path}.lora_A.{key}.weight"] = (r, columns)
        found[f"{path}.lora_B.{key}.weight"] = (rows, r)
  if "lm_head" in said["target_modules"]:
    found[f"base_model.model.lm_head.lora_A.{key}.weight"] = (r, width)
    found[f"base_model.model.lm_head.lora_B.{key}.weight"] = (words, r)
    found[f"base_model.model.model.embed_tokens.lora_embedding_A.{key}"] = (r, words)
    found[f"base_model.model.model.embed_tokens.lora_embedding_B.{key}"] = (width, r)
  return found


def values(shapes, seed):
  generator = torch.Generator().manual_seed(seed)
  return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write(folder, key, tensors):
  """An adapter as PEFT saves it."""
  from safetensors.torch import save_file

  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  named = {name.replace(f".{key}", ""): tensor.contiguous() for name, tensor in tensors.items()}
  save_file(named, folder / "adapter_model.safetensors")
  _, said = ADAPTERS[key]
  (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "bias": "none", **said}))
  return str(folder)


def differing(a, b):
  """The names of tensors that are not equal, byte for byte."""
  assert list(a) == list(b)
  return [name for name in a if a[name].dtype != b[name].dtype or not torch.equal(a[name], b[name])]


def held_of(manager, name, resident):
  """What an engine holds of an adapter: SGLang's tensors on the host, and those of its slot."""
  (ref,) = [ref for ref in manager.lora_refs.values() if ref.lora_name == name]
  adapter, pool = manager.loras[ref.lora_id], manager.memory_pool
  found = {f"{i} {n}": t for i, layer in enumerate(adapter.layers) for n, t in sorted(layer.weights.items())}
  found |= {n: t for n, t in sorted(adapter.embedding_layers.items())}
  assert (ref.lora_id in pool.uid_to_buffer_id) == resident
  manager.fetch_new_loras({ref.lora_id})
  slot = pool.uid_to_buffer_id[ref.lora_id]
  for kind in ("A_buffer", "B_buffer", "embedding_A_buffer", "embedding_B_buffer", "lm_head_A_buffer", "lm_head_B_buffer"):
    for module, held in getattr(pool, kind).items():
      for i, tensor in enumerate([held] if isinstance(held, torch.Tensor) else held):
        found[f"{kind} {module} {i}"] = tensor[slot].clone()
  if not resident:
    pool.remove_lora(ref.lora_id)
  return found | {"scale": torch.tensor(adapter.scaling), "rank": torch.tensor(adapter.config.r)}


def differences(worker, whole, draft, folders):
  """The names of what a worker holds otherwise than one that loads these values from files; and how much it holds.

  whole, draft  {name: tensor} of checkpoints
  folders       {name of requests: folder of the adapter}, of those that the worker serves. The first is in a slot
  """
  model, drafts, manager = worker.fresh(folders)
  for made in drafts:
    made.load_weights(iter(draft.items()))
  model.load_weights(iter(whole.items()))  # what they share is the target's
  held, found = 0, []
  for mine, other in zip([worker.model, *worker.drafts], [model, *drafts], strict=True):
    a, b = dict(mine.named_parameters()), dict(other.named_parameters())
    held += len(a)
    found += differing(a, b)
  for i, name in enumerate(folders):
    a, b = held_of(worker.manager, name, i == 0), held_of(manager, name, False)
    held += len(a)
    found += [f"{name}: {other}" for other in differing(a, b)]
  return found, held
