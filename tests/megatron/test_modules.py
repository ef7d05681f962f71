# SPDX-License-Identifier: Apache-2.0
"""Every rank's local tensors as reshard says them, against Megatron-Core's own modules: names,
shapes, the attributes by which Megatron knows how a parameter is cut, and which layers and experts
of the whole model they are."""

import dataclasses
import json
import os
import re
import subprocess

import pytest
import torch
from world import rank_of

# After world, which lets them be imported without a GPU.
from megatron.core import parallel_state
from megatron.core.ssm import gated_delta_net, mamba_mixer
from models import MODELS, VOCABULARY

DENSE = ["", "tp=2", "tp=4,pp=2", "tp=2,cp=2,dp=2", "pp=3,first=1,last=1", "pp=2,vpp=2"]
EXPERTS = ["", "tp=2", "ep=2", "tp=2,ep=2,pp=2", "tp=2,ep=4,etp=1", "dp=4,ep=2,etp=2", "cp=2,ep=2"]
SPLITS = [
  "pp=2,vpp=2,layout=Et|t|t|tL",
  "pp=2,account_embedding=1,account_loss=1",
  "tp=2,pp=2,dp=2,order=tp-cp-ep-pp-dp",
]
MTP_SPLITS = ["tp=2,pp=2,layout=Ett|ttmL", "pp=4,layout=Et|t*3|m|L", "pp=2,vpp=2,tp=2"]
CASES = {
  "llama": DENSE + SPLITS,
  "qwen2": [*DENSE, "tp=8"],
  "qwen3": DENSE,
  "qwen3-moe": EXPERTS + SPLITS,
  "glm": EXPERTS + MTP_SPLITS,
  "deepseek": EXPERTS + MTP_SPLITS,
  "deepseek-noq": EXPERTS[:4],
  # Megatron wants etp=1 where experts have biases.
  "gpt-oss": ["", "tp=2,etp=1", "ep=2", "tp=4,ep=2,etp=1,pp=2", "pp=2,vpp=2,ep=8"],
  "qwen3-next": ["", "tp=2", "tp=4,pp=2,ep=2", "tp=2,ep=4,etp=1", "cp=2,dp=2"],
  "nemotron": ["", "tp=2", "tp=4,pp=2", "pp=3,tp=2,ep=2", "pp=3,first=1,last=2", "tp=2,ep=4,etp=1"],
}
# How reshard's keys are called by Megatron's parallel state, and by its config.
STATE = {
  "tp": "tensor_model_parallel_size",
  "pp": "pipeline_model_parallel_size",
  "vpp": "virtual_pipeline_model_parallel_size",
  "cp": "context_parallel_size",
  "ep": "expert_model_parallel_size",
  "etp": "expert_tensor_parallel_size",
}
STAGES = {
  "first": "num_layers_in_first_pipeline_stage",
  "last": "num_layers_in_last_pipeline_stage",
  "layout": "pipeline_model_parallel_layout",
  "account_embedding": "account_for_embedding_in_pipeline_split",
  "account_loss": "account_for_loss_in_pipeline_split",
}


DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}


def keys_of(text):
  pairs = [pair.split("=", 1) for pair in text.split(",") if pair]
  return {key: int(value) if value.isdigit() else value for key, value in pairs}


ALL = [(model, text) for model, texts in CASES.items() for text in texts]


@pytest.fixture(params=ALL, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request, tmp_path_factory):
  name, text = request.param
  path = tmp_path_factory.mktemp("model") / "config.json"
  path.write_text(json.dumps(MODELS[name].hf))
  more = "norms=separate,experts=sequential,mamba_names=old"
  return MODELS[name], text, path.parent, "megatron:" + ",".join(filter(None, [text, more]))


def inspect(folder, layout, *more):
  """What `reshard inspect` says, as JSON."""
  command = [os.environ["RESHARD_BIN"], "inspect", folder, "--layout", layout, "--json", *more]
  done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
  assert done.returncode == 0, f"{layout}: {done.stderr}"
  return json.loads(done.stdout)


@dataclasses.dataclass
class Built:
  """What a rank of Megatron has, by local names."""

  tensors: dict = dataclasses.field(default_factory=dict)
  packed: dict = dataclasses.field(default_factory=dict)  # sizes of tensors of several parts
  layers: dict = dataclasses.field(default_factory=dict)  # "decoder.layers.0.": global number
  experts: dict = dataclasses.field(default_factory=dict)  # "...local_experts.0.": global number

  def add(self, front, module):
    # As training begins: Float16Module casts all, and routers take their bias back to float32.
    module.bfloat16()
    for part in module.modules():
      if hasattr(part, "_maintain_float32_expert_bias"):
        part._maintain_float32_expert_bias()
    own = module.state_dict(keep_vars=True)
    self.tensors |= {front + n: t for n, t in own.items() if not n.endswith("_extra_state")}
    self.packed |= {front + n: sizes for n, sizes in packed_parts(module).items()}
    for i, layer in enumerate(module.decoder.layers):
      self.layers[f"{front}decoder.layers.{i}."] = layer.layer_number - 1
    for name, part in module.named_modules():
      for local, number in enumerate(getattr(part, "local_expert_indices", [])):
        self.experts[f"{front}{name}.experts.local_experts.{local}."] = number


def build(model, text):
  """The modules of the present rank."""
  keys = keys_of(text)
  # Attention of the local spec refuses a config with cp; the groups have it all the same.
  parallel = {STATE[k]: v for k, v in keys.items() if k in STATE and k != "cp"}
  parallel |= {STAGES[k]: v for k, v in keys.items() if k in STAGES}
  padded = -(-VOCABULARY // (128 * keys.get("tp", 1))) * 128 * keys.get("tp", 1)
  built, chunks = Built(), keys.get("vpp", 1)
  for chunk in range(chunks):
    front = f"model{chunk}." if chunks > 1 else ""
    built.add(front, model.build(parallel, chunk if chunks > 1 else None, padded))
  return built


def packed_parts(module):
  """Sizes of the parts by which the mixers take apart what their projections give."""
  found = {}
  for name, part in module.named_modules():
    if isinstance(part, mamba_mixer.MambaMixer):
      inner, state = part.d_inner_local_tp, part.ngroups_local_tp * part.d_state
      found[name + ".in_proj.weight"] = [inner, inner, state, state, part.nheads_local_tp]
      for kind in ("weight", "bias"):
        found[f"{name}.conv1d.{kind}"] = [inner, state, state]
    if isinstance(part, gated_delta_net.GatedDeltaNet):
      keys, values = part.qk_dim // part.tp_size, part.v_dim // part.tp_size
      heads = part.num_v_heads_local_tp
      found[name + ".in_proj.weight"] = [keys, keys, values, values, heads, heads]
      found[name + ".conv1d.weight"] = [keys, keys, values]
  return found


def check_tensor(name, tensor, said, packed, strides):
  assert said["shape"] == list(tensor.shape), name
  assert said["dtype"] == DTYPES[tensor.dtype], name
  cuts = said["cuts"]
  is_tp = getattr(tensor, "tensor_model_parallel", False)
  if hasattr(tensor, "partition_dim") or not name.endswith("softmax_offset"):
    assert bool(cuts) == bool(is_tp), f"{name}: {cuts}, tensor_model_parallel {is_tp}"
  if is_tp and getattr(tensor, "partition_dim", -1) >= 0:
    assert [cut["dim"] for cut in cuts] == [tensor.partition_dim], name
  # A bias has no stride of its own; it follows its weight.
  stack = packed.get(name)
  stride = getattr(tensor, "partition_stride", strides.get(name.replace(".bias", ".weight"), 1))
  if stack is None and stride > 1:
    stack = [tensor.shape[0] // stride] * stride
  assert said.get("stacked", {}).get("sizes") == stack, name


def check_place(name, said, built):
  """The layer and the expert that a tensor's values belong to."""
  whole = [(part["tensor"], part["box"]) for part in said["fragments"]]
  for front, number in built.layers.items():
    if name.startswith(front):
      assert all(f"layers.{number}." in tensor for tensor, _ in whole), f"{name}: {whole}"
  for front, number in built.experts.items():
    if name.startswith(front):
      for tensor, box in whole:
        single = re.search(r"experts\.(\d+)\.", tensor)
        found = single.group(1) if single else box[1:].split(",", maxsplit=1)[0]
        assert int(found) == number, f"{name}: {tensor} {box}"


def test_every_rank_holds_what_megatron_builds(case):
  model, text, folder, layout = case
  keys = keys_of(text)
  world = len(inspect(folder, layout)["ranks"])
  state = {STATE[k]: v for k, v in keys.items() if k in STATE}
  if "order" in keys:
    state["order"] = keys["order"]
  for rank in range(world):
    said = {t["name"]: t for t in inspect(folder, layout, "--rank", str(rank))["local"]}
    with rank_of(world, rank, **state):
      built = build(model, text)
      expert_parts = parallel_state.get_expert_tensor_parallel_world_size()
    assert sorted(said) == sorted(built.tensors), f"{layout}, rank {rank}"
    strides = {n: getattr(t, "partition_stride", 1) for n, t in built.tensors.items()}
    for name, tensor in built.tensors.items():
      check_tensor(name, tensor, said[name], built.packed, strides)
      check_place(name, said[name], built)
      if ".local_experts." in name and said[name]["cuts"]:
        assert said[name]["cuts"][0]["parts"] == expert_parts, name
    experts = sum(".local_experts." in name for name in said)
    assert experts == 0 or len(built.experts) > 0
