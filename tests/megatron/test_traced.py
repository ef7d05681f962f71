# SPDX-License-Identifier: Apache-2.0
"""What Megatron-Bridge's own mappings load into Megatron-Core's own modules, traced rank by rank, is
the layout of the family's closed form and of the modules' attributes.

Every rank is made in one process, so what Megatron-Bridge sends from the first rank of a tensor-parallel
group to the others is handed over instead: each rank computes what the first would, and takes its part.
"""

import contextlib
import json
import types

import converters
import gloo_rank
import pytest
import torch
from building import build
from serving import run, serving
from test_modules import MODELS, STATE, VOCABULARY, keys_of
from test_of_modules import DIALECT
from world import rank_of

import reshard
import reshard.tracing
from reshard.live._bridge import composed
from reshard.live._megatron import of_descriptions
from reshard.live._modules import held_by, values_of

DENSE = ["", "tp=2", "tp=4,pp=2", "tp=2,cp=2,dp=2"]
EXPERTS = ["", "tp=2,ep=2,pp=2", "tp=2,ep=4,etp=1"]
CASES = {
  "llama": DENSE,
  "qwen2": [*DENSE[:2], "pp=2"],
  "qwen3": DENSE[:3],
  "qwen3-moe": EXPERTS,
  "qwen3-next": ["", "tp=2", "tp=4,pp=2,ep=2"],
  "deepseek": EXPERTS,
  "glm": EXPERTS,
  "gpt-oss": ["", "tp=2,etp=1", "tp=4,ep=2,etp=1,pp=2"],
  "nemotron": ["", "tp=2", "tp=4,pp=2"],
}
# Megatron-Bridge has no mappings for layers for multi-token prediction, and gives all layers experts.
CHANGES = {
  "qwen3-moe": ({"mlp_only_layers": []}, {"moe_layer_freq": 1}),
  "deepseek": ({"num_nextn_predict_layers": 0}, {"mtp_num_layers": None}),
}
# Megatron-Bridge's provider asks for norms centred on zero, which torch's norm, our stand-in, refuses.
CENTRED = {"qwen3-next"}
# The names of Transformer Engine's spec, which Megatron-Bridge knows, for those of the local spec.
ENGINE = (
  (".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight"),
  (".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight"),
  (".q_layernorm.weight", ".linear_q_up_proj.layer_norm_weight"),
  (".kv_layernorm.weight", ".linear_kv_up_proj.layer_norm_weight"),
  (".norm.weight", ".mixer.in_proj.layer_norm_weight"),
)


def changed(name):
  model = MODELS[name]
  hf, megatron = CHANGES.get(name, ({}, {}))
  return type(model)(model.hf | hf, model.megatron | megatron, model.tied)


@pytest.fixture(scope="module")
def bridges():
  return converters.bridges()


def spellings(name):
  """The names under which Megatron-Bridge may know a tensor of the local spec."""
  yield name
  front, _, expert = name.partition(".local_experts.")
  if expert:
    number, _, rest = expert.partition(".")
    yield f"{front}.{rest}{number}"
  for local, engine in ENGINE:
    if name.endswith(local):
      yield name.removesuffix(local) + engine


def mapping_of(bridge, name):
  registry = bridge.mapping_registry()
  for spelling in spellings(name):
    if (found := registry.megatron_to_hf_lookup(spelling)) is not None:
      return found
  raise LookupError(f"Megatron-Bridge has no mapping for {name}")


@contextlib.contextmanager
def without_network(monkeypatch):
  """Each rank computes what the first of its tensor-parallel group would send, and takes its part."""
  mapping = converters.mappings().MegatronParamMapping

  def scatter(self, splits, output_shape, dtype, device, src_rank=0):
    own = splits[torch.distributed.get_rank(self.tp_group)]
    assert own.shape == output_shape, self.megatron_param
    return own

  with monkeypatch.context() as patched:
    patched.setattr(mapping, "tp_rank", 0)
    patched.setattr(mapping, "scatter_to_tp_ranks", scatter)
    patched.setattr(mapping, "broadcast_tensor_to_tp_ranks", lambda self, tensor, src_rank=0: tensor)
    yield


def load(bridge, module, weights):
  """Megatron-Bridge's load, parameter by parameter."""
  tensors = dict(weights)
  own = module.state_dict(keep_vars=True)
  for held in held_by(module):
    mapping = mapping_of(bridge, held.whole)
    for part in (mapping, getattr(mapping, "_tp_mapping", None)):
      if part is not None:  # where the module of the local spec has the parameter
        part.megatron_param = held.whole
    change = getattr(bridge, "maybe_modify_loaded_hf_weight", None)
    names = mapping.hf_param
    if change is not None:
      taken = change(names, tensors)
    elif isinstance(names, str):
      taken = tensors[names]
    else:
      taken = {part: tensors[name] for part, name in names.items()}
    owner = module.get_submodule(held.name.rpartition(".")[0])
    if not hasattr(owner, "config"):  # as Megatron-Bridge does
      owner.config = module.config
    value = mapping.hf_to_megatron(taken, owner)
    own[held.name].data.copy_(value)


@pytest.mark.parametrize(
  ("name", "text"), [(name, text) for name, texts in CASES.items() for text in texts], ids=lambda value: value or "one"
)
def test_what_megatron_bridge_loads_is_where_the_closed_form_says(name, text, bridges, tmp_path, monkeypatch):
  made = changed(name)
  (tmp_path / "config.json").write_text(json.dumps(made.hf))
  model = reshard.open_model(tmp_path)
  dialect = DIALECT.replace("plain", "zero_centered") if name in CENTRED else DIALECT
  more = f"{dialect},vocab_multiple=1"
  closed = reshard.layout("megatron:" + ",".join(filter(None, [text, more])), model)
  keys = keys_of(text)
  state = {STATE[k]: v for k, v in keys.items() if k in STATE}
  said = {}
  # With tensor parallelism Megatron-Core initialises weights by copies that meta tensors do not allow.
  both = "tp=" not in text and name not in ("qwen3-next", "nemotron")

  @contextlib.contextmanager
  def rank(number):
    with rank_of(len(closed.ranks), number, **state):
      (module,) = build(made, text, padded=VOCABULARY)
      module.config.layernorm_zero_centered_gamma = name in CENTRED
      said[number] = {"held": [held.pack() for held in held_by(module)], "keys": values_of(module)}
      yield module

  def load_rank(module, weights):
    load(converters.bridge(bridges[name], made.hf), module, weights)

  with without_network(monkeypatch):
    traced = reshard.traced(rank, load_rank, model, ranks=len(closed.ranks), check=both)
  assert [str(difference) for difference in reshard.diff(traced, closed)] == []
  assert [str(difference) for difference in reshard.diff(of_descriptions(said.values(), model), closed)] == []


class Registry:
  """Megatron-Bridge's mappings, under the names of the local spec."""

  def __init__(self, bridge):
    self._bridge = bridge

  def megatron_to_hf_lookup(self, name):
    try:
      return mapping_of(self._bridge, name)
    except LookupError:
      return None


def bridge_of(kind, hf):
  bridge = converters.bridge(kind, hf)
  registry = Registry(converters.bridge(kind, hf))
  bridge.mapping_registry = lambda: registry
  return bridge


def llama_bridge():
  return bridge_of(converters.bridges()["llama"], MODELS["llama"].hf)


UNKNOWN = ("llama", "qwen3-moe", "deepseek")
BRIDGED = [(name, texts[1], name not in UNKNOWN) for name, texts in CASES.items()]


@pytest.mark.parametrize(("name", "text", "known"), BRIDGED, ids=lambda value: str(value))
def test_modules_are_described_by_their_bridge(name, text, known, bridges, tmp_path):
  """As the family describes them; also where the model has no class that is known."""
  made = changed(name)
  (tmp_path / "config.json").write_text(json.dumps(made.hf))
  model = reshard.open_model(tmp_path)
  dialect = DIALECT.replace("plain", "zero_centered") if name in CENTRED else DIALECT
  closed = reshard.layout("megatron:" + ",".join(filter(None, [text, dialect])), model)
  if not known:
    model = reshard.Model.from_tensors("bare", {t.name: (t.shape, t.dtype.name) for t in model.tensors})
  bridge = bridge_of(bridges[name], made.hf)
  state = {STATE[k]: v for k, v in keys_of(text).items() if k in STATE}
  said = []
  for number in range(len(closed.ranks)):
    with rank_of(len(closed.ranks), number, **state):
      modules = build(made, text)
      modules[0].config.layernorm_zero_centered_gamma = name in CENTRED
      held = held_by(modules)
      full = composed(bridge, modules, held, model)
      said.append({"held": [one.pack() for one in held], "keys": values_of(modules), "full": full})
  assert [str(difference) for difference in reshard.diff(of_descriptions(said, model), closed)] == []


def test_all_ranks_describe_their_modules_by_a_bridge(tmp_path, tmp_path_factory):
  (tmp_path / "config.json").write_text(json.dumps(MODELS["llama"].hf))
  with serving(gloo_rank.serve, 2, tmp_path_factory.mktemp("store")) as processes:
    for differences, said in run(processes, "bridged", tmp_path, "llama", llama_bridge):
      assert differences == []
      assert "bridge: a int has no mapping_registry()" in said[0]
      assert all("bridge= needs a model, and takes the place of full=" in text for text in said[1:]) and len(said) == 3


@pytest.fixture
def llama(tmp_path):
  made = MODELS["llama"]
  (tmp_path / "config.json").write_text(json.dumps(made.hf))
  return made, reshard.open_model(tmp_path)


def test_a_tensor_for_which_a_bridge_has_no_mapping_is_named(bridges, llama):
  made, model = llama
  with rank_of(1, 0):
    modules = build(made, "")
    for chunk in modules:
      chunk.decoder.layers[1].mlp.extra = torch.nn.Linear(2, 2, bias=False)
    held = held_by(modules)
    said = {
      "held": [one.pack() for one in held],
      "keys": values_of(modules),
      "full": composed(bridge_of(bridges["llama"], made.hf), modules, held, model),
    }
  with pytest.raises(reshard.NotFoundError, match=r"layers.1.mlp.extra.weight'.*Megatron-Bridge has no mapping for it"):
    of_descriptions([said], model)


class Auto:
  """Stands for AutoBridge, whose imports need a GPU: it makes a bridge each time, without a config."""

  def __init__(self, kind, hf):
    self.hf_pretrained, self._kind = types.SimpleNamespace(config=types.SimpleNamespace(**hf)), kind

  @property
  def _model_bridge(self):
    bridge = bridge_of(self._kind, MODELS["llama"].hf)
    del bridge.hf_config
    return bridge


def test_an_auto_bridge_is_that_of_its_class(bridges, llama):
  made, model = llama
  with rank_of(1, 0):
    modules = build(made, "")
    held = held_by(modules)
    configured = [hasattr(part, "config") for part in modules[0].modules()]
    of_auto = composed(Auto(bridges["llama"], made.hf), modules, held, model)
    assert of_auto == composed(bridge_of(bridges["llama"], made.hf), modules, held, model) != ""
    assert [hasattr(part, "config") for part in modules[0].modules()] == configured and not all(configured)


class Computing:
  """Stands for a mapping that computes."""

  hf_param = "model.norm.weight"

  @staticmethod
  def hf_to_megatron(value, module):
    return value * 3 - value.mean()


def test_a_mapping_that_computes_is_refused(bridges, llama):
  made, model = llama
  bridge = bridge_of(bridges["llama"], made.hf)
  lookup = bridge.mapping_registry().megatron_to_hf_lookup
  bridge.mapping_registry().megatron_to_hf_lookup = lambda name: Computing if "final_layernorm" in name else lookup(name)
  with rank_of(1, 0), pytest.raises(reshard.tracing.TracingError, match="final_layernorm"):
    modules = build(made, "")
    composed(bridge, modules, held_by(modules), model)
