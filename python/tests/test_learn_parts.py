# SPDX-License-Identifier: Apache-2.0
"""Protects: what learning makes of heads that a loader moves one by one, of rows that two ranks share, and of layers that
a tower leaves out."""

import json
import types

import pytest

pytest.importorskip("torch")

from reshard.learn import engines, learner  # noqa: E402
from reshard.learn.fitting.dropped import omissions  # noqa: E402
from reshard.learn.fitting.evidence import Dealt, Held, Piece, Sight, Unfit  # noqa: E402
from reshard.learn.fitting.fit import Seen  # noqa: E402
from reshard.learn.fitting.intervals import rows_at, rows_of, share_of, shared_by_two  # noqa: E402
from reshard.learn.fitting.rows import deal, flattened  # noqa: E402
from reshard.learn.fitting.terms import Terms  # noqa: E402


def test_heads_that_are_moved_one_by_one_are_rows_of_one_dimension():
  pieces = tuple(Piece("qkv", (16 * k, 0), (16 * k + 16, 5), (k, 0, 0), (1, 2)) for k in (0, 1))
  flat = flattened(Held("w", "BF16", (2, 16, 5), pieces, "identity", (0,)))
  assert (flat.shape, flat.merged) == ((32, 5), ())
  assert [(p.at, p.dims) for p in flat.pieces] == [((0, 0), (0, 1)), ((16, 0), (0, 1))]


@pytest.mark.parametrize("merged, shape", [((0,), (1, 16, 5)), ((), (2, 16, 5))])
def test_dimensions_of_boxes_stay_apart(merged, shape):
  held = Held("w", "BF16", shape, (Piece("a", (0, 0, 0), (1, 16, 5), (0, 0, 0), (0, 1, 2)),), "identity", merged)
  assert flattened(held) == held


def rotated(heads, half, cols=5):
  """Heads whose pairs of rows a loader deals out in two halves, and values behind them."""
  pieces = [
    Piece("l.0.q", (2 * (h * half + i), 0), (2 * (h * half + i) + 2, cols), (h, 0, i, 0), (1, 3)) for h in range(heads) for i in range(half)
  ]
  pieces.append(Piece("l.0.v", (0, 0), (half, cols), (heads, 0, 0, 0), (2, 3)))
  return Held("l.0.qv", "BF16", (heads + 1, 2, half, cols), tuple(pieces), "identity", (0, 1))


def test_rows_that_are_dealt_out_are_seen_in_their_order():
  flat = flattened(rotated(3, 4))
  assert (flat.shape, flat.merged, flat.dealt) == ((32, 5), (), (Dealt("l.#.q", 0, 2, 8),))
  assert [(p.tensor, p.begin[0], p.end[0], p.at) for p in flat.pieces] == [("l.0.q", 0, 24, (0, 0)), ("l.0.v", 0, 4, (24, 0))]


def test_a_rule_says_how_rows_are_dealt_out():
  seen = [
    Seen(Sight({}, {}, {}, frozenset(), {}, model), "l.0.qv", {0: flattened(rotated(3, half))}) for model, half in enumerate((4, 6))
  ]
  rule = {"match": "l.#.q", "name": "l.$1.qv", "with": [{"match": "l.#.v"}]}
  deal(rule, seen, Terms([{"head_dim": 8}, {"head_dim": 12}], {}))
  assert rule["take"] == [{"dim": 0, "end": "head_dim", "period": "head_dim", "turns": 2}]
  assert rule["with"] == [{"match": "l.#.v"}]
  with pytest.raises(Unfit, match="several ways"):
    deal({"match": "l.#.q", "take": []}, seen, Terms([{"head_dim": 8}, {"head_dim": 12}], {}))


def test_two_ranks_share_queries_and_both_have_keys():
  assert shared_by_two([(0, 40)], [[(0, 16), (32, 40)], [(16, 40)]], 40) == ([(0, 32, 40), (32, 40, 40)], [True, False])
  assert shared_by_two([(0, 40)], [[(0, 20)], [(20, 40)]], 40) == ([(0, 40, 40)], [True])
  groups = [(0, 4), (6, 10), (4, 5), (10, 11), (5, 6), (11, 12)]  # queries, keys, values of two groups
  periods = [(0, 4, 6), (4, 5, 6), (5, 6, 6)]
  assert shared_by_two(groups, [[(0, 6)], [(6, 12)]], 12) == (periods, [True] * 3)
  with pytest.raises(Unfit, match="a half each"):
    shared_by_two([(0, 40)], [[(0, 10)], [(20, 40)]], 40)


def test_ranks_have_whole_heads_of_each_period():
  keys = (8, 12, 16)  # of each group of 16 rows: 8 of queries, 4 of keys, 4 of values
  assert rows_at(share_of(16, 4, 2, 1), *keys) == {40, 41, 42, 43, 56, 57, 58, 59}
  assert rows_at(share_of(8, 2, 4, 1), *keys) == {8, 9, 10, 11}  # repeated
  held = [Piece("qkv", (0, 0), (12, 5), (0, 0), (0, 1))]
  assert rows_of(held, 0, *keys) == {8, 9, 10, 11}


def tower(layers, chosen, held, model):
  names = {f"tower.layers.{i}.norm": (4,) for i in range(layers)} | {"tower.post_norm": (4,), "head": (4,)}
  omitted = frozenset([f"tower.layers.{i}.norm" for i in range(held, layers)] + ["tower.post_norm"])
  return Sight({}, names, {0: {}}, omitted, {"vision_config.num_hidden_layers": layers, "vision_feature_layer": chosen}, model)


def test_the_last_layers_of_a_tower_are_left_out_by_the_config():
  rules, require = omissions([tower(3, -2, 2, 0), tower(5, -3, 3, 1)])
  assert rules == [
    {"match": "tower.layers.#.norm", "from": "vision_config.num_hidden_layers + vision_feature_layer + 1", "omit": True},
    {"match": "tower.post_norm", "omit": True, "when": "vision_feature_layer + 1 < 0"},
  ]
  assert [one["that"] for one in require] == ["vision_feature_layer < 0"]


def test_layers_that_no_key_chooses_are_refused():
  with pytest.raises(Unfit, match="no expression of the config gives 1, 3 layers"):
    omissions([tower(3, -2, 1, 0), tower(5, -3, 3, 1)])
  odd = tower(3, -2, 2, 0)
  with pytest.raises(Unfit, match="is left out of some layers"):
    omissions([Sight(odd.sizes, odd.shapes, odd.ranks, frozenset(["tower.layers.0.norm"]), odd.numbers, 0)])


def test_the_size_of_a_head_is_no_multiple_of_their_number():
  terms = Terms([{"hidden_size": 128, "n_head": 8}, {"hidden_size": 288, "n_head": 12}], {})
  assert terms.of([16, 24], [0, 0]) == "hidden_size / n_head"


def sight_of(shapes, sizes, heads):
  held = {name: Held(name, "BF16", shape, (), "identity", ()) for name, shape in shapes.items()}
  return Sight(sizes, {}, {0: held}, frozenset(), {"vision_config.num_heads": heads}, 0)


@pytest.mark.parametrize("heads, cut", [(4, "vision_config.num_heads % tp == 0"), (8, None)])
def test_a_tower_is_whole_where_ranks_do_not_divide_its_heads(heads, cut):
  full = {"tower.qkv": (48, 48), "model.qkv": (64, 64)}
  eight = full | {"model.qkv": (8, 64)} | ({"tower.qkv": (6, 48)} if cut is None else {})
  rules = [(name, {"match": name, "cuts": [{"dim": 0, "axes": ["tp"]}]}) for name in full]
  learned = types.SimpleNamespace(
    rules=rules, terms=Terms([{"vision_config.num_heads": n} for n in (heads, 20)], {}),
    sight=lambda model, sizes, ranks: sight_of(eight if sizes else full, sizes, heads),
  )  # fmt: skip
  engines.keep_towers_whole(learned)
  assert [rule["cuts"][0].get("when") for _, rule in rules] == [cut, None]


def form_of(folder, flag):
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps({"model_type": "stand_in", "multi_query": flag}))
  return folder


def test_rules_of_a_form_hold_by_the_key_that_says_it(tmp_path):
  teacher = types.SimpleNamespace(
    numbers_of=lambda folder: json.loads((folder / "config.json").read_text()), defaults_of=lambda _: {"multi_query": 1}
  )
  others = [form_of(tmp_path / str(i), 0) for i in range(3)]
  assert learner._of_form(teacher, "multi_query", others) == {"when": "(multi_query ?? 1) == 0"}
  assert learner._also_when({"match": "a"}, "b == 1") == {"match": "a", "when": "b == 1"}
  assert learner._also_when({"match": "a", "when": "c"}, "b == 1") == {"match": "a", "when": "(c) && b == 1"}


def local(name, *tensors):
  pieces = tuple(Piece(tensor, (0,), (4,), (4 * i,), (0,)) for i, tensor in enumerate(tensors))
  held = Held(name, "BF16", (4 * len(tensors),), pieces, "identity", ())
  return Seen(Sight({}, {}, {}, frozenset(), {}, 0), name, {0: held})


@pytest.mark.parametrize("layer, fused", [(1, {"beside": "l.$1.k"}), (0, {})])
def test_layers_that_fuse_a_tensor_are_told_from_those_that_have_it_alone(layer, fused):
  found = {"l.#.q": [local(f"l.{layer}.q", f"l.{layer}.q")], "l.#.in": [local("l.0.in", "l.0.q", "l.0.k")]}
  both = {"match": "l.#.q", "name": "l.$1.in", "with": [{"match": "l.#.k"}]}
  rules = learner._tell_apart([("l.#.q", {"match": "l.#.q"}), ("l.#.in", dict(both))], found)
  assert sorted(rules, key=str) == [("l.#.in", both | fused), ("l.#.q", {"match": "l.#.q"})]
  assert rules[0][0] == ("l.#.in" if fused else "l.#.q")
