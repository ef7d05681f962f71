# SPDX-License-Identifier: Apache-2.0
"""Small models under the parallel layouts that trainers and engines use, as full tensors and as shards."""

import dataclasses
import functools
import re

import torch
from torch.distributed.tensor import Replicate, Shard

WIDTH, HEADS, DIM, INNER, EXPERTS = 16, 8, 4, 16, 8
BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
R = Replicate()


@dataclasses.dataclass(frozen=True)
class Side:
  """Ranks first, first + 1, ...; each pipeline stage has a mesh of [replicas, tp], and one of [replicas, ep].

  With ep, whole experts lie on their own mesh; without, tensor parallelism cuts each expert."""

  first: int = 0
  tp: int = 1
  dp: int = 1
  pp: int = 1
  ep: int = 1
  kv_heads: int = 0  # more ranks than these: each head is on several

  @property
  def ranks(self):
    return range(self.first, self.first + self.tp * self.dp * self.pp)

  def _mesh(self, stage, *shape):
    size = self.tp * self.dp
    return torch.arange(self.first + stage * size, self.first + (stage + 1) * size).view(-1, *shape).tolist()

  def place(self, name, layers):
    """(mesh, placements), or None where the tensor is whole on each rank of its stage; and the stage."""
    stage = _stage(name, layers, self.pp)
    if ".experts." in name and self.ep > 1:
      return (self._mesh(stage, self.ep), [R, Shard(0)]), stage
    cut = next((dim for pattern, dim in CUTS if re.search(pattern, name)), None)
    if cut is None or self.tp == 1:
      return None, stage
    if self.kv_heads and self.tp > self.kv_heads and re.search(r"[kv]_proj", name):
      return (self._mesh(stage, self.kv_heads, self.tp // self.kv_heads), [R, Shard(0), R]), stage
    return (self._mesh(stage, self.tp), [R, Shard(cut)]), stage


# The first that matches: the dimension that tensor parallelism cuts. All others are whole.
CUTS = [
  (r"experts\.(gate|up)_proj$", 1),
  (r"experts\.down_proj$", 2),
  (r"[qkv]_proj\.(weight|bias|weight_scale_inv)$", 0),
  (r"(gate|up)_proj\.(weight|weight_scale_inv)$", 0),
  (r"(o|down|out)_proj\.(weight|weight_scale_inv)$", 1),
  (r"(embed_tokens|lm_head)\.weight$", 0),
]


def _stage(name, layers, stages):
  found = re.search(r"layers\.([0-9]+)\.", name)
  if found:
    return int(found.group(1)) * stages // layers
  return 0 if "embed" in name else stages - 1


def _values(shape, dtype, seed):
  made = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
  return (made * 8).to(dtype)


def _attention(kv_heads, fp8=False):
  rows = {"q": HEADS * DIM, "k": kv_heads * DIM, "v": kv_heads * DIM}
  weight = FP8 if fp8 else BF16
  found = {f"self_attn.{n}_proj.weight": ((size, WIDTH), weight) for n, size in rows.items()}
  found["self_attn.o_proj.weight"] = ((WIDTH, HEADS * DIM), weight)
  if fp8:  # blocks of 2 x 2, and scales of the KV cache
    found |= {f"{n}_scale_inv": ((a // 2, b // 2), F32) for n, ((a, b), _) in list(found.items())}
    found |= {"self_attn.k_scale": ((), F32), "self_attn.v_scale": ((), F32)}
  return found


def _dense(fp8=False):
  weight = FP8 if fp8 else BF16
  found = {
    "mlp.gate_proj.weight": ((INNER, WIDTH), weight),
    "mlp.up_proj.weight": ((INNER, WIDTH), weight),
    "mlp.down_proj.weight": ((WIDTH, INNER), weight),
  }
  if fp8:
    found |= {f"{n}_scale_inv": ((a // 2, b // 2), F32) for n, ((a, b), _) in list(found.items())}
  return found


def _experts(gated=True):
  names = ("gate_proj", "up_proj") if gated else ("up_proj",)
  found = {f"mlp.experts.{name}": ((EXPERTS, INNER, WIDTH), BF16) for name in names}
  found["mlp.experts.down_proj"] = ((EXPERTS, WIDTH, INNER), BF16)
  return found | {"mlp.gate.weight": ((EXPERTS, WIDTH), BF16), "mlp.gate.e_score_correction_bias": ((EXPERTS,), F32)}


def _mamba():
  return {
    "mixer.in_proj.weight": ((3 * WIDTH, WIDTH), BF16), "mixer.conv1d.weight": ((WIDTH, 1, 4), BF16),
    "mixer.A_log": ((HEADS,), F32), "mixer.D": ((HEADS,), F32), "mixer.dt_bias": ((HEADS,), F32),
    "mixer.norm.weight": ((WIDTH,), BF16), "mixer.out_proj.weight": ((WIDTH, WIDTH), BF16),
  }  # fmt: skip


def _latent():
  return {
    "self_attn.q_a_proj.weight": ((6, WIDTH), BF16), "self_attn.q_a_layernorm.weight": ((6,), BF16),
    "self_attn.q_b_proj.weight": ((HEADS * DIM, 6), BF16), "self_attn.kv_a_proj_with_mqa.weight": ((5, WIDTH), BF16),
    "self_attn.kv_b_proj.weight": ((HEADS * DIM, 4), BF16), "self_attn.o_proj.weight": ((WIDTH, HEADS * DIM), BF16),
  }  # fmt: skip


KINDS = {
  "dense": lambda kv: _attention(kv) | _dense(),
  "fp8": lambda kv: _attention(kv, True) | _dense(True),
  "moe": lambda kv: _attention(kv) | _experts(),
  "hybrid": lambda kv: _attention(kv) | _experts(gated=False) | _mamba(),
  "latent": lambda _: _latent() | _experts(),
}


@functools.cache
def full_tensors(kind, layers, kv_heads):
  """{name: full tensor} of a model of this kind."""
  layer = {"input_layernorm.weight": ((WIDTH,), BF16)} | KINDS[kind](kv_heads)
  sizes = {"model.embed_tokens.weight": ((24, WIDTH), BF16)}
  for i in range(layers):
    sizes |= {f"model.layers.{i}.{name}": said for name, said in layer.items()}
  sizes |= {"model.norm.weight": ((WIDTH,), BF16), "lm_head.weight": ((24, WIDTH), BF16)}
  return {name: _values(shape, dtype, seed) for seed, (name, (shape, dtype)) in enumerate(sizes.items())}


def shards(full, side, layers, rank):
  """What a rank holds, cut evenly by torch.chunk; None if it is not of the side."""
  if rank not in side.ranks:
    return None
  size = side.tp * side.dp
  found = {}
  for name, tensor in full.items():
    where, stage = side.place(name, layers)
    if (rank - side.first) // size != stage:
      continue
    if where is not None:
      mesh = torch.tensor(where[0])
      at = (mesh == rank).nonzero()[0].tolist()
      for parts, k, placement in zip(mesh.shape, at, where[1], strict=True):
        if isinstance(placement, Shard):
          tensor = _chunk(tensor, parts, placement.dim, k)
    found[name] = tensor.clone()
  return found


def _chunk(tensor, parts, dim, k):
  bits = tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor  # torch cuts no FP8
  return bits.chunk(parts, dim)[k].contiguous().view(tensor.dtype)


def fused(held):
  """The parameters of an engine: gates and ups, and queries, keys and values, lie in one tensor. What is asked
  for by the names of the checkpoint is a view of that."""
  views = dict(held)
  for name, tensor in held.items():
    if name.endswith("mlp.experts.gate_proj"):
      parts = [name, name.replace("gate_proj", "up_proj")]
      dim = 1
    elif name.endswith("self_attn.q_proj.weight"):
      parts = [name.replace("q_proj", f"{n}_proj") for n in "qkv"]
      dim = 0
    else:
      continue
    sizes = [held[part].shape[dim] for part in parts]
    shape = list(tensor.shape)
    shape[dim] = sum(sizes)
    whole = torch.zeros(shape, dtype=tensor.dtype)
    at = 0
    for part, size in zip(parts, sizes, strict=True):
      views[part] = whole.narrow(dim, at, size)
      at += size
  return views


def same(a, b):
  """Every bit."""
  return a.shape == b.shape and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
