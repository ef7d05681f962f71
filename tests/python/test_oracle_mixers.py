# SPDX-License-Identifier: Apache-2.0
"""As test_oracle_meaning.py for MLA, Mamba, gated delta nets and gated attention: stand-ins for the
real arithmetic, in which every part of a packed tensor plays a role of its own."""

import numpy as np
import pytest

from oracle import expected_ranks
from oracle_model import Model
from oracle_tensor import Tensor

HIDDEN, TOKENS, VOCAB = 6, 3, 8


def make_model(prefix, shapes, heads=4, kv_heads=4, head_dim=3, **config):
  """A model of one layer without an MLP: `shapes` by the rest of the name."""
  random = np.random.default_rng(7)
  shapes = {prefix + name: shape for name, shape in shapes.items()}
  root = "backbone.embeddings" if prefix.startswith("backbone") else "model.embed_tokens"
  norm = "backbone.norm_f" if prefix.startswith("backbone") else "model.norm"
  shapes |= {f"{root}.weight": (VOCAB, HIDDEN), f"{norm}.weight": (HIDDEN,)}
  tensors = {
    name: Tensor("F64", random.integers(-3, 4, shape).astype(np.float64))
    for name, shape in shapes.items()
  }
  return Model(tensors, 1, heads, kv_heads, head_dim, config)


def inputs():
  return np.random.default_rng(1).integers(-3, 4, (TOKENS, HIDDEN)).astype(np.float64)


def data(held, prefix, *names):
  return [held[prefix + name].data for name in names]


NOPE, ROPE, VALUE, Q_RANK, KV_RANK, HEADS = 3, 2, 4, 6, 4, 4


def mla_model(q_rank):
  at = "self_attn."
  shapes = {
    at + "kv_a_proj_with_mqa.weight": (KV_RANK + ROPE, HIDDEN),
    at + "kv_a_layernorm.weight": (KV_RANK,),
    at + "kv_b_proj.weight": (HEADS * (NOPE + VALUE), KV_RANK),
    at + "o_proj.weight": (HIDDEN, HEADS * VALUE),
    "input_layernorm.weight": (HIDDEN,),
  }
  if q_rank:
    shapes |= {
      at + "q_a_proj.weight": (Q_RANK, HIDDEN),
      at + "q_a_layernorm.weight": (Q_RANK,),
      at + "q_b_proj.weight": (HEADS * (NOPE + ROPE), Q_RANK),
    }
  else:
    shapes[at + "q_proj.weight"] = (HEADS * (NOPE + ROPE), HIDDEN)
  return make_model("model.layers.0.", shapes)


def mla(q, kv_down, kv_norm, kv_up, out):
  """Latents in, all given heads out, projected."""
  latent, rope = np.split(kv_down, [KV_RANK], axis=1)
  kv = ((latent * kv_norm) @ kv_up.T).reshape(TOKENS, -1, NOPE + VALUE)
  q = q.reshape(TOKENS, -1, NOPE + ROPE)
  score = (q[..., :NOPE] * kv[..., :NOPE]).sum(-1) + (q[..., NOPE:] * rope[:, None]).sum(-1)
  return (score[..., None] * kv[..., NOPE:]).reshape(TOKENS, -1) @ out.T


def whole_mla(model, x, q_rank):
  part = lambda name: model.layer(0, f"self_attn.{name}.weight").data  # noqa: E731
  if q_rank:
    q = (x @ part("q_a_proj").T * part("q_a_layernorm")) @ part("q_b_proj").T
  else:
    q = x @ part("q_proj").T
  down = x @ part("kv_a_proj_with_mqa").T
  return mla(q, down, part("kv_a_layernorm"), part("kv_b_proj"), part("o_proj"))


@pytest.mark.parametrize("q_rank", [0, Q_RANK])
@pytest.mark.parametrize("keys", ["", ",mla_down=sharded", ",mla_down=fused", ",norms=separate"])
def test_megatron_mla(keys, q_rank):
  model, x = mla_model(q_rank), inputs()
  ranks = expected_ranks(model, f"megatron:tp=2{keys}")
  at = "decoder.layers.0.self_attention."
  sharded = "sharded" in keys or "separate" in keys

  def down(name):
    if "fused" in keys and q_rank:
      halves = [np.split(h[f"{at}linear_qkv_down_proj.weight"].data, [Q_RANK // 2]) for h in ranks]
      return x @ np.concatenate([half[name == "kv"] for half in halves]).T
    parts = [held[f"{at}linear_{name}_down_proj.weight"].data for held in ranks]
    assert sharded or np.array_equal(parts[0], parts[1])
    return x @ np.concatenate(parts if sharded else parts[:1]).T

  def up_norm(held, name):
    if "separate" in keys:
      return held[f"{at}{name}_layernorm.weight"].data
    return held[f"{at}linear_{name}_up_proj.layer_norm_weight"].data

  total = 0
  for held in ranks:
    if q_rank:
      q = (down("q") * up_norm(held, "q")) @ held[f"{at}linear_q_up_proj.weight"].data.T
    else:
      q = x @ held[f"{at}linear_q_proj.weight"].data.T
    up, out = data(held, at, "linear_kv_up_proj.weight", "linear_proj.weight")
    total = total + mla(q, down("kv"), up_norm(held, "kv"), up, out)
  np.testing.assert_array_equal(total, whole_mla(model, x, q_rank))


@pytest.mark.parametrize("q_rank", [0, Q_RANK])
def test_vllm_mla(q_rank):
  model, x, total = mla_model(q_rank), inputs(), 0
  at = "model.layers.0.self_attn."
  for held in expected_ranks(model, "vllm:tp=4"):
    norm, up, out = data(held, at, "kv_a_layernorm.weight", "kv_b_proj.weight", "o_proj.weight")
    if q_rank:
      q, down = np.split(x @ held[f"{at}fused_qkv_a_proj.weight"].data.T, [Q_RANK], axis=1)
      q = (q * held[f"{at}q_a_layernorm.weight"].data) @ held[f"{at}q_b_proj.weight"].data.T
    else:
      q = x @ held[f"{at}q_proj.weight"].data.T
      down = x @ held[f"{at}kv_a_proj_with_mqa.weight"].data.T
    total = total + mla(q, down, norm, up, out)
  np.testing.assert_array_equal(total, whole_mla(model, x, q_rank))


MAMBA_HEADS, MAMBA_DIM, STATE, KERNEL = 4, 3, 2, 2


def mamba_model(groups):
  inner, states = MAMBA_HEADS * MAMBA_DIM, groups * STATE
  shapes = {
    "norm.weight": (HIDDEN,),
    "mixer.in_proj.weight": (2 * inner + 2 * states + MAMBA_HEADS, HIDDEN),
    "mixer.conv1d.weight": (inner + 2 * states, 1, KERNEL),
    "mixer.conv1d.bias": (inner + 2 * states,),
    "mixer.norm.weight": (inner,),
    "mixer.out_proj.weight": (HIDDEN, inner),
  }
  shapes |= {f"mixer.{name}": (MAMBA_HEADS,) for name in ("A_log", "D", "dt_bias")}
  return make_model(
    "backbone.layers.0.",
    shapes,
    mamba_num_heads=MAMBA_HEADS,
    mamba_head_dim=MAMBA_DIM,
    n_groups=groups,
    ssm_state_size=STATE,
  )


def mamba(x, groups, in_proj, conv, conv_bias, log, skip, dt_bias, norm, out):
  """A mixer of as many heads as `log` has and `groups` groups of B and C."""
  heads = len(log)
  inner, states = heads * MAMBA_DIM, groups * STATE
  z, packed, dt = np.split(x @ in_proj.T, [inner, 2 * inner + 2 * states], axis=1)
  packed = packed * conv[:, 0, 0] + 2 * packed * conv[:, 0, 1] + conv_bias
  x, b, c = np.split(packed, [inner, inner + states], axis=1)
  gain = (b.reshape(TOKENS, groups, STATE) * (2 * c).reshape(TOKENS, groups, STATE) ** 2).sum(-1)
  gain = np.repeat(gain, heads // groups, axis=1) * (dt + dt_bias) * log
  x = x.reshape(TOKENS, heads, MAMBA_DIM)
  y = x * gain[..., None] + x * skip[:, None]
  return (y.reshape(TOKENS, -1) * z * norm) @ out.T


PARTS = ("A_log", "D", "dt_bias", "norm.weight", "out_proj.weight")


@pytest.mark.parametrize(
  "layout, groups",
  [
    ("megatron:tp=1", 2),
    ("megatron:tp=2", 2),
    ("megatron:tp=4", 4),
    ("megatron:tp=2,mamba_names=old", 2),
    ("vllm:tp=2", 2),
    ("vllm:tp=2", 4),
    ("vllm:tp=4", 1),
  ],
)
def test_mamba(layout, groups):
  model, x, total = mamba_model(groups), inputs(), 0
  ranks = expected_ranks(model, layout)
  at = f"{'decoder' if layout.startswith('megatron') else 'model'}.layers.0.mixer."
  conv = "conv1d_" if layout.startswith("megatron") and "old" not in layout else "conv1d."
  for held in ranks:
    own = [name if at + name in held else "A" for name in PARTS]
    names = ("in_proj.weight", f"{conv}weight", f"{conv}bias", *own)
    total = total + mamba(x, max(1, groups // len(ranks)), *data(held, at, *names))
  names = ("in_proj.weight", "conv1d.weight", "conv1d.bias", *PARTS)
  whole = mamba(x, groups, *data(model.tensors, "backbone.layers.0.mixer.", *names))
  np.testing.assert_array_equal(total, whole)


KEYS, VALUES, KEY_DIM, VALUE_DIM = 2, 4, 3, 2


def delta_model():
  keys, values = KEYS * KEY_DIM, VALUES * VALUE_DIM
  shapes = {
    "input_layernorm.weight": (HIDDEN,),
    "linear_attn.in_proj_qkvz.weight": (2 * keys + 2 * values, HIDDEN),
    "linear_attn.in_proj_ba.weight": (2 * VALUES, HIDDEN),
    "linear_attn.conv1d.weight": (2 * keys + values, 1, KERNEL),
    "linear_attn.A_log": (VALUES,),
    "linear_attn.dt_bias": (VALUES,),
    "linear_attn.norm.weight": (VALUE_DIM,),
    "linear_attn.out_proj.weight": (HIDDEN, values),
  }
  config = dict(num_key_heads=KEYS, num_value_heads=VALUES, key_head_dim=KEY_DIM)
  config |= dict(value_head_dim=VALUE_DIM)
  return make_model(
    "model.layers.0.", shapes, **{f"linear_{name}": size for name, size in config.items()}
  )


def unpack_delta(x, qkvz, ba, keys):
  """q, k, v, z, b, a of all heads, from rows packed by key head as the checkpoint has them."""
  share = VALUES // KEYS
  packed = (x @ qkvz.T).reshape(TOKENS, keys, -1)
  parts = np.split(packed, np.cumsum([KEY_DIM, KEY_DIM, share * VALUE_DIM]), axis=2)
  parts += np.split((x @ ba.T).reshape(TOKENS, keys, -1), 2, axis=2)
  return [part.reshape(TOKENS, -1) for part in parts]


def delta(parts, conv, log, dt_bias, norm, out):
  q, k, v, z, b, a = parts
  mixed = np.concatenate([q, k, v], axis=1) * (conv[:, 0, 0] + 2 * conv[:, 0, 1])
  q, k, v = np.split(mixed, [q.shape[1], 2 * q.shape[1]], axis=1)
  score = (q * k * k).reshape(TOKENS, -1, KEY_DIM).sum(-1)
  score = np.repeat(score, VALUES // KEYS, axis=1) * b * (a + dt_bias) * log
  y = (v + 2 * z * z).reshape(TOKENS, -1, VALUE_DIM) * score[..., None] * norm
  return y.reshape(TOKENS, -1) @ out.T


DELTA = ("conv1d.weight", "A_log", "dt_bias")


@pytest.mark.parametrize("layout", ["megatron:tp=1", "megatron:tp=2", "vllm:tp=1", "vllm:tp=2"])
def test_gated_delta_net(layout):
  model, x, total = delta_model(), inputs(), 0
  ranks = expected_ranks(model, layout)
  keys, values = KEYS // len(ranks), VALUES // len(ranks)
  for held in ranks:
    if layout.startswith("megatron"):
      at = "decoder.layers.0.self_attention."
      ends = np.cumsum([keys * KEY_DIM] * 2 + [values * VALUE_DIM] * 2 + [values])
      parts = np.split(x @ held[f"{at}in_proj.weight"].data.T, ends, axis=1)
      rest = data(held, at, *DELTA, "out_norm.weight", "out_proj.weight")
    else:
      at = "model.layers.0.linear_attn."
      parts = unpack_delta(x, *data(held, at, "in_proj_qkvz.weight", "in_proj_ba.weight"), keys)
      rest = data(held, at, *DELTA, "norm.weight", "out_proj.weight")
    total = total + delta(parts, *rest)
  at = "model.layers.0.linear_attn."
  names = ("in_proj_qkvz.weight", "in_proj_ba.weight", *DELTA, "norm.weight", "out_proj.weight")
  whole = data(model.tensors, at, *names)
  expected = delta(unpack_delta(x, *whole[:2], KEYS), *whole[2:])
  np.testing.assert_array_equal(total, expected)


def gated_attention(q, gate, k, v, out):
  """Heads with a gate each; stands in for attention, any function of a head and its key, value."""
  k, v = (np.repeat(part, q.shape[1] // part.shape[1], axis=1) for part in (k, v))
  return ((q * k + 2 * v) * gate).reshape(TOKENS, -1) @ out.T


@pytest.mark.parametrize("layout", ["megatron:tp=1", "megatron:tp=2", "vllm:tp=2", "vllm:tp=4"])
def test_gated_attention(layout):
  heads, kv_heads, dim = 4, 2, 3
  at, shapes = "self_attn.", {"input_layernorm.weight": (HIDDEN,)}
  rows = {"q_proj": heads * 2 * dim, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}
  shapes |= {f"{at}{name}.weight": (count, HIDDEN) for name, count in rows.items()}
  shapes[f"{at}o_proj.weight"] = (HIDDEN, heads * dim)
  model = make_model("model.layers.0.", shapes, heads, kv_heads, dim)
  x, total = inputs(), 0
  ranks = expected_ranks(model, layout)
  kv, own = max(1, kv_heads // len(ranks)), heads // len(ranks)
  for held in ranks:
    if layout.startswith("megatron"):
      fused, out = data(
        held, "decoder.layers.0.self_attention.", "linear_qkv.weight", "linear_proj.weight"
      )
      group = (x @ fused.T).reshape(TOKENS, kv, -1, dim)
      q, gate, k, v = np.split(group, np.cumsum([own // kv, own // kv, 1]), axis=2)
      parts = [part.reshape(TOKENS, -1, dim) for part in (q, gate, k, v)]
    else:
      fused, out = data(held, "model.layers.0.self_attn.", "qkv_proj.weight", "o_proj.weight")
      packed = (x @ fused.T).reshape(TOKENS, -1, dim)
      q, k, v = np.split(packed, [2 * own, 2 * own + kv], axis=1)
      parts = [q[:, 0::2], q[:, 1::2], k, v]
    total = total + gated_attention(*parts, out)
  names = (f"{name}_proj.weight" for name in "qkvo")
  q, k, v, out = data(model.tensors, "model.layers.0.self_attn.", *names)
  q = (x @ q.T).reshape(TOKENS, heads, 2, dim)
  k, v = ((x @ part.T).reshape(TOKENS, kv_heads, dim) for part in (k, v))
  expected = gated_attention(q[:, :, 0], q[:, :, 1], k, v, out)
  np.testing.assert_array_equal(total, expected)
