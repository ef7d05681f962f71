# SPDX-License-Identifier: Apache-2.0
"""What the layout fsdp puts on each rank, against transformers' own modules wrapped by fully_shard:
names, local shapes and bytes of every parameter and buffer. The release of transformers is the one
of the environment: 5 in `make test`, 4 in `make transformers-test`. Of 4 what its modules hold is
recorded below, so that both forms are looked at everywhere.
"""

import numpy as np
import pytest
import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import program
from oracle_tensor import read_tensors
from test_dtensor import as_rank

transformers.utils.logging.set_verbosity_error()

RELEASE = int(transformers.__version__.split(".")[0])
HIDDEN, INNER, EXPERTS = 32, 24, 5


def sizes(**more):
  return dict(
    hidden_size=HIDDEN,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=67,
    tie_word_embeddings=False,
    **more,
  )


DEEPSEEK = dict(
  n_routed_experts=EXPERTS,
  n_group=1,
  topk_group=1,
  num_experts_per_tok=2,
  first_k_dense_replace=1,
  moe_intermediate_size=INNER,
)
MODELS = {
  "Qwen3Moe": sizes(
    head_dim=8, num_experts=EXPERTS, num_experts_per_tok=2, moe_intermediate_size=INNER
  ),
  "Mixtral": sizes(num_local_experts=EXPERTS, num_experts_per_tok=2),
  "DeepseekV3": sizes(q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, **DEEPSEEK)
  | dict(qk_nope_head_dim=8, v_head_dim=6, num_key_value_heads=4),
  "Glm4Moe": sizes(head_dim=8, **DEEPSEEK),
  "GptOss": sizes(head_dim=8, num_local_experts=EXPERTS, num_experts_per_tok=2),
  "Qwen3Next": sizes(
    head_dim=8,
    num_experts=EXPERTS,
    num_experts_per_tok=2,
    moe_intermediate_size=INNER,
    shared_expert_intermediate_size=INNER,
    layer_types=["linear_attention", "full_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=4,
    linear_value_head_dim=4,
  ),
  "NemotronH": dict(
    hidden_size=HIDDEN,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=67,
    intermediate_size=40,
    moe_intermediate_size=INNER,
    moe_shared_expert_intermediate_size=INNER,
    moe_latent_size=16,
    n_routed_experts=EXPERTS,
    n_group=1,
    topk_group=1,
    num_experts_per_tok=2,
    mamba_num_heads=4,
    mamba_head_dim=8,
    n_groups=2,
    ssm_state_size=8,
    layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
  ),
}
# The module of version 4 that holds routed experts, and what it holds of the first.
OF_VERSION_4 = {
  "Qwen3Moe": ("mlp", {"gate_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}),
  "Mixtral": ("block_sparse_moe", {"w1": (40, HIDDEN), "w2": (HIDDEN, 40), "w3": (40, HIDDEN)}),
}
HERE = [name for name in MODELS if hasattr(transformers, name + "ForCausalLM")]


@pytest.fixture(scope="module")
def model(request):
  name = request.param
  torch.manual_seed(7)
  config = getattr(transformers, name + "Config")(**MODELS[name])
  made = getattr(transformers, name + "ForCausalLM")(config).to(torch.bfloat16)
  with torch.no_grad():
    for parameter in made.parameters():
      parameter.copy_(torch.randn(parameter.shape))
  for path, buffer in made.named_buffers():
    if path.endswith("e_score_correction_bias"):
      buffer.data = torch.randn(buffer.shape, dtype=torch.float32)
  return made


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
  folder = tmp_path_factory.mktemp("hf")
  model.save_pretrained(folder)
  return folder


def held_by_fully_shard(model):
  """Each rank's tensors: local parameters, and the buffers of a state dict. @pre as_rank"""
  for layer in model.model.layers:
    fully_shard(layer, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
  fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
  state = model.state_dict()
  return {
    name: (t.to_local() if hasattr(t, "to_local") else t).detach() for name, t in state.items()
  }


@pytest.mark.parametrize("shard", [2, 3, 8])
@pytest.mark.parametrize("model", HERE, indirect=True)
def test_ranks_hold_what_fully_shard_leaves_of_the_modules(model, checkpoint, shard, tmp_path):
  layout = f"fsdp:shard={shard},transformers={RELEASE}"
  ranks = program.RankFolder(program.convert(checkpoint, tmp_path / "ranks", "hf", layout))
  config, state = model.config, {name: t.clone() for name, t in model.state_dict().items()}
  for rank in range(shard):
    with as_rank(rank, shard):
      copy = type(model)(config).to(torch.bfloat16)
      for name, buffer in copy.named_buffers():
        if name.endswith("e_score_correction_bias"):
          buffer.data = buffer.data.float()
      copy.load_state_dict(state)
      want = held_by_fully_shard(copy)
    held = ranks.rank(rank)
    assert set(held) == set(want)
    for name, local in want.items():
      assert held[name].data.shape == tuple(local.shape), name
      bits = local.contiguous().view(torch.int16 if local.element_size() == 2 else torch.int32)
      kind = np.int16 if local.element_size() == 2 else np.int32
      assert np.array_equal(held[name].data.view(kind), bits.numpy()), name
  back = program.convert(tmp_path / "ranks", tmp_path / "back", layout, "hf")
  same = read_tensors(back / "model.safetensors"), read_tensors(checkpoint / "model.safetensors")
  assert set(same[0]) == set(same[1])
  for name, tensor in same[1].items():
    assert np.array_equal(same[0][name].data.view(np.uint8), tensor.data.view(np.uint8)), name


@pytest.mark.parametrize("model", [name for name in HERE if name != "GptOss"], indirect=True)
def test_the_newest_release_is_the_default(model, checkpoint, tmp_path):
  folder = program.convert(checkpoint, tmp_path / "ranks", "hf", "fsdp:shard=2")
  held = set(program.RankFolder(folder).rank(0))
  assert any(name.endswith(".experts.down_proj") for name in held)
  assert not any(".experts.0." in name for name in held)


@pytest.mark.parametrize("model", sorted(OF_VERSION_4), indirect=True)
def test_modules_of_version_4_hold_each_expert_by_itself(request, model, checkpoint, tmp_path):
  block, tensors = OF_VERSION_4[request.node.callspec.params["model"]]
  folder = program.convert(checkpoint, tmp_path / "ranks", "hf", "fsdp:shard=2,transformers=4")
  held = program.RankFolder(folder).rank(0)
  for which, (rows, columns) in tensors.items():
    name = f"model.layers.1.{block}.experts.{EXPERTS - 1}.{which}.weight"
    assert held[name].data.shape == (rows // 2, columns), name
    if RELEASE == 4:
      assert tuple(model.state_dict()[name].shape) == (rows, columns)
