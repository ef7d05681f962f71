# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what a worker of SGLang has for updates: models with SGLang's kind of load_weights(), called by SGLang's
rule for custom loaders, draft models, and LoRAManager with what reshard.sglang meets of it."""

import importlib
import json
import pathlib
import re
import types

import torch
import torch.distributed as dist
from torch import nn
from torch_models import small_model

TP = 2
_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}


class Config:
  """An adapter's config."""

  def __init__(self, said):
    self.hf_config, self.target_modules = said, said["target_modules"]
    self.r, self.lora_alpha = said["r"], said["lora_alpha"]

  @classmethod
  def from_dict(cls, said, base_vocab_size=None):
    return cls(said)


class Adapter:
  """An adapter on the host: q, k and v stacked, gate and up, too."""

  def __init__(self, lora_id, config, hf_config, load_config, backend, base_model=None):
    self.config, self.scaling = config, config.lora_alpha / config.r
    self.layers = [types.SimpleNamespace(weights={}) for _ in range(hf_config.num_hidden_layers)]
    self.embedding_layers = {}

  def _process_weight(self, name, tensor):
    layer = re.search(r"layers\.(\d+)\.", name)
    if layer:
      self.layers[int(layer[1])].weights[name] = tensor
    elif "lm_head" in self.config.target_modules:
      self.embedding_layers[name] = tensor

  def _normalize_weights(self):
    for layer in self.layers:
      for fused, parts in (("qkv_proj", ["q_proj", "k_proj", "v_proj"]), ("gate_up_proj", ["gate_proj", "up_proj"])):
        for name in [name for name in layer.weights if parts[0] in name]:
          named = [name.replace(parts[0], part) for part in parts]
          layer.weights[name.replace(parts[0], fused)] = torch.cat([layer.weights.pop(n) for n in named])


class Pool:
  """Slots of [max rank * parts, in] and [out, max rank], whole on each worker."""

  def __init__(self, model, rank, targets):
    self._rank, self._targets = rank, targets
    self.uid_to_buffer_id, slots = {}, 3
    config = model.config
    width, inner, words = config.hidden_size, config.intermediate_size, config.vocab_size
    qkv = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    sizes = {"qkv_proj": (3, width, qkv), "gate_up_proj": (2, width, 2 * inner), "down_proj": (1, inner, width),
             "o_proj": (1, config.num_attention_heads * config.head_dim, width)}  # fmt: skip
    layers = range(config.num_hidden_layers)
    made = lambda *shape: torch.zeros(slots, *shape, dtype=torch.bfloat16)  # noqa: E731
    self.A_buffer = {name: [made(c * rank, i) for _ in layers] for name, (c, i, _) in sizes.items()}
    self.B_buffer = {name: [made(o, rank) for _ in layers] for name, (_, _, o) in sizes.items()}
    self.embedding_A_buffer, self.embedding_B_buffer = {"embed_tokens": made(rank, words)}, {"embed_tokens": made(width, rank)}
    self.lm_head_A_buffer, self.lm_head_B_buffer = {"lm_head": made(rank, width)}, {"lm_head": made(words, rank)}
    self.new_embeddings_buffer = {}

  def can_support(self, config):
    return {_FUSED.get(name, name) for name in config.target_modules} <= self._targets

  def _clear_buffer_slot_for_base(self, slot):
    for kind in ("A_buffer", "B_buffer"):
      for held in getattr(self, kind).values():
        for tensor in held:
          tensor[slot].zero_()

  def remove_lora(self, lora_id):
    self._clear_buffer_slot_for_base(self.uid_to_buffer_id.pop(lora_id))

  def load_lora_weight_to_buffer(self, lora_id, slot, adapter, modules, embed, head):
    r = adapter.config.r
    for i, layer in enumerate(adapter.layers):
      for name, tensor in layer.weights.items():
        (target,) = [t for t in self._targets if t in name]
        self._fill((self.A_buffer if "lora_A" in name else self.B_buffer)[target][i], slot, name, tensor, r)
    for name, tensor in adapter.embedding_layers.items():
      kind, target = ("embedding", "embed_tokens") if "embed" in name.split(".lora")[0] else ("lm_head", "lm_head")
      self._fill(getattr(self, f"{kind}_{'A' if name.split('lora_')[1].startswith(('A', 'embedding_A')) else 'B'}_buffer")[target],
                 slot, name, tensor, r)  # fmt: skip

  def _fill(self, buffer, slot, name, tensor, r):
    is_a = "lora_A" in name or "embedding_A" in name
    view = buffer[slot, : tensor.shape[0]] if is_a else buffer[slot, :, :r]
    assert view.shape == tensor.shape, f"buffer {list(view.shape)} does not match weight {list(tensor.shape)}"
    view.copy_(tensor)


class Manager:
  """LoRAManager."""

  def __init__(self, model, folders, rank=8):
    self.base_model, self.base_hf_config, self.load_config, self.lora_backend = model, model.config, None, None
    self.max_lora_rank = rank
    self.target_modules = {"qkv_proj", "gate_up_proj", "o_proj", "down_proj", "lm_head", "embed_tokens"}
    parts = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    self.lora_modules = [{f"model.layers.{i}.{p}": None for p in parts} for i in range(model.config.num_hidden_layers)]
    self.embed_tokens_module = self.lm_head_module = object()
    self.memory_pool = Pool(model, rank, self.target_modules)
    self.loras, self.configs, self.lora_refs, self.notified = {}, {}, {}, []
    for name, folder in folders.items():
      self._read(name, pathlib.Path(folder))

  def _read(self, name, folder):
    from safetensors.torch import load_file

    lora_id = f"id of {name}"
    self.lora_refs[lora_id] = types.SimpleNamespace(lora_name=name, lora_id=lora_id, pinned=False)
    self.configs[lora_id] = Config(json.loads((folder / "adapter_config.json").read_text()))
    self.loras[lora_id] = adapter = Adapter(lora_id, self.configs[lora_id], self.base_hf_config, None, None)
    for key, tensor in load_file(folder / "adapter_model.safetensors").items():
      adapter._process_weight(key, tensor)
    adapter._normalize_weights()

  def fetch_new_loras(self, ids):
    pool = self.memory_pool
    for lora_id in ids - set(pool.uid_to_buffer_id):
      slot = min(set(range(3)) - set(pool.uid_to_buffer_id.values()))
      pool.load_lora_weight_to_buffer(lora_id, slot, self.loras[lora_id], self.lora_modules, None, None)
      pool.uid_to_buffer_id[lora_id] = slot

  def _notify_lora_slots_updated(self, slots):
    self.notified.append(slots)


class EagleDraft(nn.Module):
  """A draft model with embeddings and head of its target, and a row-sharded layer of its own."""

  def __init__(self, target, rank, size):
    super().__init__()
    self.embed, self.head = target.parameter("model.embed_tokens.weight"), target.parameter("lm_head.weight")
    width, words = target.config.hidden_size, self.embed.shape[0]
    self.fc = nn.Parameter(torch.zeros(width // size, 2 * width, dtype=torch.bfloat16), requires_grad=False)
    self.fc_bias = nn.Parameter(torch.zeros(width, dtype=torch.bfloat16), requires_grad=False)
    self._begins = {"embed_tokens.weight": rank * words, "fc.weight": rank * (width // size)}

  def load_weights(self, weights):
    named = {"embed_tokens.weight": "embed", "fc.weight": "fc", "fc.bias": "fc_bias"}
    for name, loaded in weights:
      if name in named:  # SGLang's loaders skip others
        into = getattr(self, named[name]).data
        begin = self._begins.get(name, 0)
        rows = min(into.shape[0], loaded.shape[0] - begin)
        into.narrow(0, 0, rows).copy_(loaded.narrow(0, begin, rows))


class Worker:
  """What the stand-in has in a worker process: a target model, draft models, and adapters."""

  def __init__(self, rank, _, folder, store):
    dist.init_process_group("gloo", store=dist.FileStore(str(store), TP), rank=rank, world_size=TP)
    self.rank, self.like = rank, small_model()
    self.plain = self.make(), [self.make()], None
    self.serve("", {})

  def make(self):
    return Model(self.rank, self.like)

  def serve(self, kind, folders):
    """Serves a draft model of a kind and adapters; "" and {}: what the worker was made with."""
    self.kind = kind
    self.model, self.drafts, self.manager = self.fresh(folders) if kind or folders else self.plain
    for ref in [*self.manager.lora_refs][:1] if self.manager else ():
      self.manager.fetch_new_loras({ref})

  def fresh(self, folders):
    model = self.make()
    drafts = [EagleDraft(model, self.rank, TP)] if self.kind == "eagle" else []
    return model, drafts, Manager(model, folders) if folders else None

  def answer(self, said):
    """Calls the loader for all models, as SGLang does for an update from tensors."""
    path, values = said
    for model in (self.model, *self.drafts):
      named = [(name, torch.tensor(data, dtype=torch.uint8)) for name, data in values]
      Updater(model, self.manager if model is self.model else None).update(path, named)
    return ""

  def untouched(self):
    return not any(bool(parameter.any()) for parameter in self.drafts[0].parameters())


class Updater:
  """The stand-in for SGLang's WeightUpdater of a model, which calls the loader."""

  def __init__(self, model, manager):
    self.get_model_runner = lambda: types.SimpleNamespace(model=model, lora_manager=manager)
    self.model = model

  def update(self, path, named):
    module, _, function = path.rpartition(".")  # SGLang's dynamic_import
    getattr(importlib.import_module(module), function)(self.model, named)


class Model(nn.Module):
  """A rank of a Llama under tensor parallelism: fused projections, a padded vocabulary."""

  def __init__(self, rank, like):
    super().__init__()
    self.rank, self.config = rank, like.config
    config = like.config
    width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    rows = {"q": heads * dim, "k": groups * dim, "v": groups * dim, 0: inner, 1: inner}
    self.sizes = {shard: size // TP for shard, size in rows.items()}
    self.vocabulary = -(-config.vocab_size // TP // 8) * 8
    shapes = {"model.embed_tokens.weight": (self.vocabulary, width), "lm_head.weight": (self.vocabulary, width)}
    for name, tensor in like.state_dict().items():
      prefix, _, last = name.rpartition("self_attn.")
      if "q_proj" in last:
        shapes[f"{prefix}self_attn.qkv_proj.weight"] = (sum(self.sizes[s] for s in "qkv"), width)
      elif "gate_proj" in name:
        shapes[name.replace("gate_proj", "gate_up_proj")] = (2 * inner // TP, width)
      elif "o_proj" in name or "down_proj" in name:
        shapes[name] = (width, tensor.shape[1] // TP)
      elif "norm" in name:
        shapes[name] = (width,)
    self.names = list(shapes)
    for i, shape in enumerate(shapes.values()):
      parameter = nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False)
      parameter.weight_loader = self._sharded
      self.register_parameter(f"p{i}", parameter)

  def parameter(self, name):
    return getattr(self, f"p{self.names.index(name)}")

  def load_weights(self, weights):
    stacked = [("qkv_proj", f"{s}_proj", s) for s in "qkv"] + [("gate_up_proj", "gate_proj", 0), ("gate_up_proj", "up_proj", 1)]
    for name, loaded in weights:
      for fused, part, shard in stacked:
        if f".{part}." in name:
          parameter = self.parameter(name.replace(part, fused))
          parameter.weight_loader(parameter, loaded, name, shard)
          break
      else:
        parameter = self.parameter(name)
        parameter.weight_loader(parameter, loaded, name)

  def _sharded(self, parameter, loaded, name, shard=None):
    into = parameter.data
    if shard is not None:
      order = ["q", "k", "v"] if shard in ("q", "k", "v") else [0, 1]
      begin = sum(self.sizes[s] for s in order[: order.index(shard)])
      into = into.narrow(0, begin, self.sizes[shard])
      loaded = loaded.narrow(0, self.rank * self.sizes[shard], self.sizes[shard])
    elif "o_proj" in name or "down_proj" in name:
      loaded = loaded.narrow(1, self.rank * into.shape[1], into.shape[1])
    elif "embed" in name or "lm_head" in name:
      rows = min(self.vocabulary, loaded.shape[0] - self.rank * self.vocabulary)
      loaded = loaded.narrow(0, self.rank * self.vocabulary, rows)
      into = into.narrow(0, 0, rows)
    into.copy_(loaded)
