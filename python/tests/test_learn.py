# SPDX-License-Identifier: Apache-2.0
"""Protects: a layout card is written only if it predicts what the engine holds at sizes, and of a model, that
learning never saw. The engine is a stand-in with vLLM's primitives; tests/vllm/test_cards.py has vLLM."""

import copy
import dataclasses
import functools
import json
import types

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

import reshard  # noqa: E402
from reshard import learn  # noqa: E402
from reshard.learn import NoCard, card_text, engines, shards, vllm_parallel  # noqa: E402
from reshard.learn.fitting import apart  # noqa: E402
from reshard.learn.fitting.evidence import Held, Piece, Sight, Unfit  # noqa: E402
from reshard.learn.fitting.terms import Terms  # noqa: E402
from reshard.learn.fitting.turns import Turns, straightened, turns_of  # noqa: E402
from reshard.learn.models import stored  # noqa: E402

BF16 = torch.bfloat16
CONFIGS = [
  dict(hidden_size=64, heads=8, num_key_value_heads=2, head_dim=16, width=96, num_hidden_layers=4, vocab_size=70, experts=4, dense=1),
  dict(hidden_size=96, heads=12, num_key_value_heads=4, head_dim=4, width=160, num_hidden_layers=7, vocab_size=150, experts=8, dense=3),
  dict(hidden_size=32, heads=16, num_key_value_heads=2, head_dim=6, width=112, num_hidden_layers=6, vocab_size=130, experts=2, dense=4),
]  # fmt: skip


def tensors(c):
  """The names and shapes of a checkpoint: dense first layers, experts in the others, fused ups and gates."""
  h, q, kv, w = c["hidden_size"], c["heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"], c["width"]
  out = {"embed.weight": (c["vocab_size"], h), "norm.weight": (h,), "head.weight": (c["vocab_size"], h)}
  out |= {"merger.mlp.0.weight": (w, h), "merger.mlp.0.bias": (w,), "merger.mlp.2.weight": (h, w), "merger.mlp.2.bias": (h,)}
  for layer in range(c["num_hidden_layers"]):
    at = f"layers.{layer}."
    out |= {f"{at}q.weight": (q, h), f"{at}k.weight": (kv, h), f"{at}v.weight": (kv, h), f"{at}o.weight": (h, q)}
    out |= {f"{at}qk_conv1d.bias": (q,), f"{at}norm.weight": (h,)}
    if layer < c["dense"]:
      out |= {f"{at}gate_up.weight": (2 * w, h), f"{at}down.weight": (h, w)}
      continue
    for e in range(c["experts"]):
      out |= {f"{at}experts.{e}.gate.weight": (w, h), f"{at}experts.{e}.up.weight": (w, h), f"{at}experts.{e}.down.weight": (h, w)}
  return out


def checkpoint(folder, config):
  folder.mkdir()
  said = config | {"architectures": ["StandInForCausalLM"], "model_type": "stand_in", "dtype": "bfloat16"}
  (folder / "config.json").write_text(json.dumps(said))
  weights = {name: torch.zeros(shape, dtype=BF16) for name, shape in tensors(config).items()}
  safetensors_torch.save_file(weights, folder / "model.safetensors")
  return folder


class Engine(torch.nn.Module):
  """A rank of an engine that fuses, stacks, pads and repeats as vLLM does."""

  def __init__(self, c, sizes, rank, odd):
    super().__init__()
    self.c, self.tp, self.pp, self.dp = c, sizes.get("tp", 1), sizes.get("pp", 1), sizes.get("dp", 1)
    self.t, self.stage, self.d = rank % self.tp, rank // self.tp % self.pp, rank // self.tp // self.pp
    self.spread, self.odd = sizes.get("ep", 1) > 1, odd
    layers, each = c["num_hidden_layers"], [c["num_hidden_layers"] // self.pp] * self.pp
    for i in range(layers % self.pp):
      each[self.pp - 2 - i] += 1
    self.mine = range(sum(each[: self.stage]), sum(each[: self.stage + 1]))
    self.held = {}
    self.all_experts = self.tp * self.dp
    h, w, kv = c["hidden_size"], c["width"], max(c["num_key_value_heads"] // self.tp, 1) * c["head_dim"]
    rows = -(-c["vocab_size"] // 64) * 64 // self.tp
    if self.stage == 0:
      self.add("embed.weight", rows, h)
      for name, *shape in (("0.weight", w // self.tp, h), ("0.bias", w // self.tp), ("2.weight", h, w // self.tp), ("2.bias", h)):
        self.add("merger.mlp." + name, *shape)
    if self.stage == self.pp - 1:
      self.add("head.weight", rows, h)
    self.add("norm.weight", h)
    for i in self.mine:
      q = c["heads"] * c["head_dim"] // self.tp
      self.add(f"layers.{i}.qkv.weight", q + 2 * kv, h)
      self.add(f"layers.{i}.o.weight", h, q)
      self.add(f"layers.{i}.qk_conv1d.bias", q, dtype=torch.float32)
      self.add(f"layers.{i}.norm.weight", h)
      if i < c["dense"]:
        self.add(f"layers.{i}.gate_up.weight", 2 * w // self.tp, h)
        self.add(f"layers.{i}.down.weight", h, w // self.tp)
      else:
        n, v = (c["experts"] // self.all_experts, w) if self.spread else (c["experts"], w // self.all_experts)
        self.add(f"layers.{i}.w13", n, 2 * v, h)
        self.add(f"layers.{i}.w2", n, h, v)

  def add(self, name, *shape, dtype=BF16):
    self.held[name] = torch.nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
    at, _, last = name.rpartition(".")
    self.module(at).register_parameter(last, self.held[name])

  def module(self, path):
    found = self
    for part in filter(None, path.split(".")):
      if part not in found._modules:
        found.add_module(part, torch.nn.Module())
      found = found._modules[part]
    return found

  def cut(self, w, dim=0, parts=None, at=None):
    parts, at = parts or self.tp, self.t if at is None else at
    size = w.shape[dim] // parts
    return w.narrow(dim, at * size, size)

  def load_weights(self, weights):
    for name, w in weights:
      self.load_one(name, w)

  def load_one(self, name, w):
    parts = name.split(".")
    if parts[0] == "layers" and int(parts[1]) not in self.mine:
      return
    at = ".".join(parts[:2])
    if parts[0] == "merger":
      if name in self.held:
        cut = self.cut(w, int(parts[2]) // 2) if name != "merger.mlp.2.bias" else w
        self.held[name].data.copy_(cut)
    elif name in ("embed.weight", "head.weight"):
      if name in self.held:
        mine = self.held[name].data
        begin = min(self.t * len(mine), len(w))
        rows = w[begin : begin + len(mine)]
        mine[: len(rows)].copy_(rows)
        mine[len(rows) :].zero_()
    elif parts[-2] in "qkv" and parts[0] == "layers":
      self.load_qkv(self.held[f"{at}.qkv.weight"].data, parts[-2], w)
    elif parts[-2] == "gate_up":
      half = len(self.held[name]) // 2
      gate, up = w.chunk(2)
      self.held[name].data[:half].copy_(self.cut(gate))
      self.held[name].data[half:].copy_(self.cut(up))
    elif "experts" in parts:
      self.load_expert(at, int(parts[3]), parts[4], w)
    elif parts[-2] in ("o", "down"):
      self.held[name].data.copy_(self.cut(w, 1))
    elif parts[-2] == "qk_conv1d":
      self.held[name].data.copy_(self.cut(w))
    else:
      self.held[name].data.copy_(self.odd(self, w))

  def load_qkv(self, mine, which, w):
    c = self.c
    units = c["heads"] if which == "q" else c["num_key_value_heads"]
    kv = max(c["num_key_value_heads"] // self.tp, 1) * c["head_dim"]
    size, at = max(units // self.tp, 1) * c["head_dim"], self.t * units // self.tp * c["head_dim"]
    begin = {"q": 0, "k": len(mine) - 2 * kv, "v": len(mine) - kv}[which]
    mine[begin : begin + size].copy_(w[at : at + size])

  def load_expert(self, at, expert, which, w):
    name = f"{at}.w2" if which == "down" else f"{at}.w13"
    mine, here = self.held[name].data, self.d * self.tp + self.t
    if self.spread:
      expert -= here * len(mine)
      if not 0 <= expert < len(mine):
        return
    else:
      w = self.cut(w, 1 if which == "down" else 0, self.all_experts, here)
    half = mine.shape[1] // 2
    place = mine[expert] if which == "down" else mine[expert, :half] if which == "gate" else mine[expert, half:]
    place.copy_(w)


def whole(engine, w):
  return w


def teacher_of(odd=whole):
  """The stand-in as learn() takes it. `odd`: what becomes of norms."""

  @functools.lru_cache(None)
  def traced(folder, sizes, ranks):
    c, sizes = json.loads((folder / "config.json").read_text()), dict(sizes)
    world = sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("dp", 1)

    def load(engine, weights):
      engine.load_weights(weights)

    return reshard.traced(
      lambda rank: Engine(c, sizes, rank, odd), load, folder, ranks=ranks or world, prove=False, omit=ranks is None, name="stand-in"
    )

  def layout_of(folder, sizes, ranks=None):
    return traced(folder, tuple(sorted(sizes.items())), ranks)

  def numbers_of(folder):
    return {k: v for k, v in json.loads((folder / "config.json").read_text()).items() if isinstance(v, int)}

  return types.SimpleNamespace(
    FRAMEWORK="stand-in", RELEASE="1.0", STAGES=vllm_parallel.STAGES, numbers_of=numbers_of, defaults_of=lambda model_type: {}, layout_of=layout_of,
    tied_names=lambda architecture: frozenset({"head.weight"}),
    DTYPE="config", SEEN_AT=engines.SEEN_AT, finish=vllm_parallel.finish, rows=vllm_parallel.rows,
    sight=lambda folder, sizes, model, ranks=None: Sight.of(
      layout_of(folder, sizes, ranks), sizes, numbers_of(folder), model
    ),
  )  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  root = tmp_path_factory.mktemp("models")
  return [checkpoint(root / str(i), c) for i, c in enumerate(CONFIGS)]


@pytest.fixture(scope="module")
def learned(folders):
  return learn.learn(teacher_of(), folders[:2], folders[2])


def test_a_card_says_what_the_engine_does(learned):
  text = card_text(learned)
  rules = {rule.get("name", rule["match"]): rule for rule in json.loads(text)["rules"]}
  assert rules["layers.$1.qkv.weight"]["with"][0]["cuts"][0] == {
    "dim": 0, "axes": ["tp"], "rule": "spread", "granule": "extent / num_key_value_heads", "even": True,
  }  # fmt: skip
  assert rules["layers.$1.gate_up.weight"]["take"] == [{"dim": 0, "end": "extent / 2"}]
  assert rules["layers.$1.w13"]["each"] == 2 and rules["layers.$1.w13"]["stack"] == 1
  assert rules["embed.weight"]["pad"] == [{"dim": 0, "multiple": 64}]
  assert rules["layers.#.qk_conv1d.bias"]["dtype"] == "float32"
  # A number that counts no layers tells apart what is cut otherwise.
  assert rules["merger.mlp.0.weight"]["cuts"][0]["dim"] == 0 and rules["merger.mlp.2.weight"]["cuts"][0]["dim"] == 1
  assert "cuts" in rules["merger.mlp.0.bias"] and "cuts" not in rules["merger.mlp.2.bias"]
  assert "tp=2,pp=3 (unseen)" in learned["card"]["proof"]


def test_a_card_is_a_rules_file_for_models_of_any_size(learned, tmp_path):
  """A model larger than all that were seen, at sizes that were not."""
  config = CONFIGS[0] | {"num_hidden_layers": 5, "dense": 3, "heads": 32, "num_key_value_heads": 8, "width": 480, "experts": 16}
  folder = checkpoint(tmp_path / "large", config)
  model = reshard.open_model(folder)
  (tmp_path / "card.json").write_text(card_text(learned))
  for sizes in (dict(tp=16), dict(tp=4, pp=2), dict(tp=2, dp=4, ep=8)):
    keys = ",".join(f"{k}={v}" for k, v in sizes.items())
    ours = reshard.layout(f"rules:{tmp_path / 'card.json'},{keys}", model)
    assert reshard.diff(teacher_of().layout_of(folder, sizes), ours) == []


def test_a_key_that_another_one_equals_in_all_models_is_refused(tmp_path):
  """Which of them a size is would be a guess, right in every model that was seen."""
  seen = [checkpoint(tmp_path / str(i), c | {"num_query_groups": c["num_key_value_heads"]}) for i, c in enumerate(CONFIGS)]
  with pytest.raises(NoCard, match="'num_key_value_heads' and 'num_query_groups' are equal in all models"):
    learn.learn(teacher_of(), seen[:2], seen[2])


def test_models_with_a_kv_head_for_each_head_have_a_card_of_their_own(tmp_path):
  seen = [checkpoint(tmp_path / str(i), c | {"num_attention_heads": c["num_key_value_heads"]}) for i, c in enumerate(CONFIGS)]
  card = learn.learn(teacher_of(), seen[:2], seen[2])
  model = reshard.open_model(checkpoint(tmp_path / "other", CONFIGS[0] | {"num_attention_heads": 8}))
  with pytest.raises(reshard.Error, match="learned from models with a KV head for each head"):
    reshard.rules_layout(card_text(card), model, tp=2)


def test_layers_that_one_stage_holds_by_chance_are_placed_by_layer(folders, tmp_path):
  """In all models that were seen only the first layer is dense: it is on the first stage."""
  seen = [checkpoint(tmp_path / str(i), c | {"dense": 1}) for i, c in enumerate(CONFIGS)]
  card = learn.learn(teacher_of(), seen[:2], seen[2])
  for folder in (folders[1], folders[2]):
    theirs = teacher_of().layout_of(folder, {"pp": 3})
    assert reshard.diff(theirs, reshard.rules_layout(card_text(card), reshard.open_model(folder), pp=3)) == []


def flips(card):
  """The card with one thing changed at a time, and what was changed."""
  for i, rule in enumerate(card["rules"]):
    for k in range(1 + len(rule.get("with", ()))):
      changes = {
        "cuts": lambda part: part["cuts"][0].update(dim=0 if part["cuts"][0]["dim"] else 1),
        "no cuts": lambda part: part.pop("cuts"),
        "rule": lambda part: part["cuts"][0].pop("rule"),
        "granule": lambda part: part["cuts"][0].update(granule=part["cuts"][0]["granule"].replace("extent", "2 * extent")),
        "take": lambda part: part["take"][0].update(end="extent / 4"),
        "multiple": lambda part: part["pad"][0].update(multiple=part["pad"][0]["multiple"] * 2),
        "each": lambda part: part.pop("each"),
        "where": lambda part: part.pop("where"),
        "rest": lambda part: part["where"][0].update(rest="first"),
        "dtype": lambda part: part.pop("dtype"),
        "stack": lambda part: part.pop("stack"),
      }
      for what, change in changes.items():
        flipped = copy.deepcopy(card)
        part = flipped["rules"][i] if k == 0 else flipped["rules"][i]["with"][k - 1]
        try:
          change(part)
        except (KeyError, IndexError, AttributeError):
          continue
        yield f"{what} of {rule['match']}, part {k}", flipped
    if len(rule.get("with", ())) > 1:
      flipped = copy.deepcopy(card)
      flipped["rules"][i]["with"].reverse()
      yield f"order of {rule['match']}", flipped


def test_a_flipped_card_is_caught(learned, folders):
  teacher = teacher_of()
  assert learn.prove(teacher, learned, folders[:2], folders[2])
  flipped = list(flips(learned))
  assert len(flipped) > 40
  for what, card in flipped:
    with pytest.raises(NoCard):
      learn.prove(teacher, card, folders[:2], folders[2])
      pytest.fail(what)


@pytest.mark.parametrize(
  ("odd", "said"),
  [
    # Norms are in another order at eight ranks, in the model that was not seen, or where nothing is fitted to them.
    (lambda engine, w: w.flip(0) if engine.tp == 8 else w, "tp=8: predicts other than the framework holds"),
    (lambda engine, w: w.roll(1) if engine.c["experts"] == 2 else w, "tp=2: predicts other than the framework holds"),
    (lambda engine, w: w.roll(1) if engine.tp == 4 else w, "tp=4: predicts other than the framework holds"),
  ],
)
def test_an_engine_that_does_otherwise_elsewhere_gets_no_card(folders, odd, said):
  with pytest.raises(NoCard, match=said):
    learn.learn(teacher_of(odd), folders[:2], folders[2])


def test_an_engine_that_computes_gets_no_card(folders):
  with pytest.raises(NoCard, match="TracingError"):
    learn.learn(teacher_of(lambda engine, w: w * 2), folders[:2], folders[2])


def test_an_engine_that_takes_a_part_of_a_tensor_gets_no_card(folders):
  """As loaders do whose parameters are smaller than the tensors, because sizes of a config do not fit each other."""
  with pytest.raises(NoCard, match=r"ranks hold 62 of the 64 elements of '[a-z0-9.]*norm\.weight'"):
    learn.learn(teacher_of(lambda engine, w: torch.nn.functional.pad(w[:-2], (0, 2))), folders[:2], folders[2])


def test_expressions_are_those_of_all_models():
  terms = Terms([{"heads": 8, "width": 16, "hidden": 128}, {"heads": 4, "width": 24, "hidden": 80}], {"width": 64})
  assert terms.of([128, 96], [256, 200]) == "heads * (width ?? 64)"
  assert terms.of([64, 50], [128, 100]) == "extent / 2"
  with pytest.raises(Unfit, match="64 is the same in all models"):
    terms.of([64, 64], [128, 100])
  with pytest.raises(Unfit, match="no expression of the config gives 7, 11"):
    terms.of([7, 11], [70, 99])


def test_the_rows_of_kv_heads_are_no_product_of_counts():
  """2 * kv * heads has the same values here, by chance."""
  configs = [{"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2}]
  configs += [{"hidden_size": 288, "num_attention_heads": 12, "num_key_value_heads": 4}]
  assert Terms(configs, {}).of([32, 96], [192, 480]) == (
    "hidden_size / num_attention_heads * (num_key_value_heads ?? num_attention_heads)"
  )


def held_of(rows, pieces):
  """A local tensor of (tensor, first row, last row, place) in order."""
  boxes = [Piece(name, (begin, 0), (end, 5), (at, 0), (0, 1)) for name, begin, end, at in pieces]
  return Held("w", "BF16", (rows, 5), tuple(boxes), "identity", ())


def placed(held):
  return [(p.tensor, p.begin[0], p.end[0], p.at[0]) for p in held.pieces]


def test_parts_that_take_turns_are_put_one_after_the_other():
  whole = held_of(6, [("q", 0, 1, 0), ("q", 1, 2, 1), ("k", 0, 1, 2), ("q", 2, 4, 3), ("k", 1, 2, 5)])
  found = turns_of(whole)
  assert found == Turns(2, (2, 1))
  assert placed(straightened(whole, found)) == [("q", 0, 4, 0), ("k", 0, 2, 4)]
  rank = held_of(3, [("q", 2, 4, 0), ("k", 1, 2, 2)])
  assert placed(straightened(rank, found)) == [("q", 2, 4, 0), ("k", 1, 2, 2)]
  assert straightened(held_of(2, [("q", 2, 4, 0)]), found) is None  # not a whole turn


def test_queries_and_gates_of_a_tensor_take_turns():
  # By head, the tensor has a query, then a gate; a turn has two queries, two gates and a key.
  rows = [("q", 0), ("q", 2), ("q", 1), ("q", 3), ("k", 0), ("q", 4), ("q", 6), ("q", 5), ("q", 7), ("k", 1)]
  whole = held_of(10, [(name, row, row + 1, at) for at, (name, row) in enumerate(rows)])
  found = turns_of(whole)
  assert found == Turns(2, (2, 2, 1))
  straight = placed(straightened(whole, found))
  assert [begin for name, begin, _, _ in straight if name == "q"] == [0, 2, 4, 6, 1, 3, 5, 7]
  assert straight[-1] == ("k", 0, 2, 8)


def test_runs_of_a_fused_tensor_take_turns():
  # Two heads of two rows: queries, keys and values, stacked in the tensor and by head in the module.
  rows = [(0, 2), (4, 6), (8, 10), (2, 4), (6, 8), (10, 12)]
  whole = held_of(12, [("qkv", begin, end, 2 * at) for at, (begin, end) in enumerate(rows)])
  found = turns_of(whole)
  assert found == Turns(2, (2, 2, 2))
  assert placed(straightened(whole, found)) == [("qkv", 0, 12, 0)]
  rank = held_of(6, [("qkv", begin, end, 2 * at) for at, (begin, end) in enumerate(rows[3:])])
  assert placed(straightened(rank, found)) == [("qkv", 2, 4, 0), ("qkv", 6, 8, 2), ("qkv", 10, 12, 4)]


def sight_of_experts(shape, pieces):
  """Local tensors of experts, each of a piece (begin, end, dims) of one tensor."""
  held = {}
  for e, (begin, end, dims) in enumerate(pieces):
    local = [0] * 3
    for i, d in enumerate(dims):
      local[d] = end[i] - begin[i]
    held[f"fc1.{e}"] = Held(f"fc1.{e}", "BF16", tuple(local), (Piece("w", begin, end, (0, 0, 0), dims),), "identity", (0,))
  return Sight({}, {"w": shape}, {0: held}, frozenset(), {}, 0)


def test_a_tensor_of_all_experts_is_seen_as_one_of_each():
  pieces = [((e, 0, 0), (e + 1, 6, 4), (0, 2, 1)) for e in (0, 1)]
  seen = apart.taken_apart(sight_of_experts((2, 6, 4), pieces))
  assert seen.ranks[0]["fc1.1"] == Held("fc1.1", "BF16", (4, 6), (Piece("w.[].1", (0, 0), (6, 4), (0, 0), (1, 0)),), "identity", ())
  assert seen.shapes == {"w": (2, 6, 4), "w.[].0": (6, 4), "w.[].1": (6, 4)}
  several = sight_of_experts((2, 6, 4), [((0, 0, 0), (2, 6, 4), (0, 2, 1))])
  assert apart.taken_apart(several) == several


def test_a_rule_for_experts_is_said_of_the_tensor_of_all():
  terms = Terms([{"experts": 2, "hidden": 4, "width": 3}, {"experts": 3, "hidden": 5, "width": 7}], {})
  sights = [Sight({}, {"w": shape, "w.[].0": shape[1:]}, {}, frozenset(), {}, i) for i, shape in enumerate([(2, 6, 4), (3, 14, 5)])]
  rule = {"match": "w.[].#", "name": "fc1.$1", "with": [{"match": "w.[].#", "shared": True}]}
  apart.say_apart(rule, sights, terms)
  said = {"match": "w", "apart": True, "shape": ["experts", "2 * width", "hidden"]}
  assert rule == said | {"name": "fc1.$1", "with": [said | {"shared": True}]}
  with pytest.raises(Unfit, match="one index of a tensor is held otherwise"):
    apart.say_apart({"match": "w.[].0"}, sights, terms)
  other = [sights[0], dataclasses.replace(sights[1], shapes={"w": (3, 11, 5)})]
  with pytest.raises(Unfit, match="no expression of the config gives 6, 11"):
    apart.say_apart({"match": "w.[].#"}, other, terms)


def test_rows_that_a_rank_does_not_get_are_noticed():
  values = {"w": torch.arange(12.0).reshape(2, 3, 2), "v": torch.arange(3.0)}
  # A row of padding, and an index of a tensor, turned.
  held = Held("x", "F32", (1, 3, 3), (Piece("w", (1, 0, 0), (2, 3, 2), (0, 0, 0), (0, 2, 1)),), "identity", (0,))
  got = torch.zeros(3, 3)
  got[:2] = values["w"][1].T
  shards.check_shards([held, Held("v", "F32", (3,), (), "minus_one", ())], {"x": got, "v": values["v"]}, values, 2)
  with pytest.raises(NoCard, match="rank 2: 'x' is cut otherwise"):
    shards.check_shards([held], {"x": got.flip(1)}, values, 2)
  with pytest.raises(NoCard, match="rank 2: 'x' is cut otherwise"):
    shards.check_shards([held], {"x": got[:2]}, values, 2)


def test_published_checkpoints_stack_or_transpose_experts():
  gate, up, down = (torch.arange(float(n)).reshape(2, 3, -1) for n in (24, 24, 18))
  single = {f"l.0.mlp.experts.{e}.{k}_proj.weight": w[e] for e in (1, 0) for k, w in (("gate", gate), ("up", -up), ("down", down))}
  made = stored.stacked(single | {"norm": gate})
  assert set(made) == {"norm", "l.0.mlp.experts.gate_up_proj", "l.0.mlp.experts.down_proj"}
  assert torch.equal(made["l.0.mlp.experts.gate_up_proj"], torch.cat([gate, -up], dim=1))
  assert torch.equal(made["l.0.mlp.experts.down_proj"], down)
  turned = stored.transposed(made)
  assert torch.equal(turned["l.0.mlp.experts.down_proj"], down.mT) and turned["norm"] is gate


@pytest.mark.parametrize("pieces", [
  [("gate", 0, 3, 0), ("up", 0, 3, 3)],
  [("w", 0, 3, 0), ("w", 3, 6, 3)],
  [("a", 0, 2, 0), ("b", 0, 1, 2), ("a", 2, 3, 3), ("b", 1, 3, 4)],
  [("w", 0, 1, 0), ("w", 3, 4, 1), ("w", 1, 3, 2), ("w", 4, 6, 4)],
])  # fmt: skip
def test_parts_that_are_stacked_take_no_turns(pieces):
  assert turns_of(held_of(6, pieces)) is None
