# SPDX-License-Identifier: Apache-2.0
"""A layout of one's own: an engine that fuses two projections and pads a vocabulary, described in two ways.

  python examples/python/own_layout.py
"""

import json

import reshard

HIDDEN, WIDE, VOCABULARY = 8, 12, 10
ENGINE_RANKS = 2


def model_of_mine() -> reshard.Model:
  """Any model: names, shapes and dtypes of its whole tensors."""
  return reshard.Model.from_tensors(
    "mine",
    {
      "embed.weight": ((VOCABULARY, HIDDEN), "bfloat16"),
      "mlp.gate.weight": ((WIDE, HIDDEN), "bfloat16"),
      "mlp.up.weight": ((WIDE, HIDDEN), "bfloat16"),
      "norm.weight": ((HIDDEN,), "float32"),
    },
  )


def fused_engine(model: reshard.Model) -> reshard.Layout:
  """Tensor by tensor: each rank has its rows of gate and of up in one tensor, and a padded vocabulary."""
  builder = reshard.LayoutBuilder("fused engine", model)
  rows, words = WIDE // ENGINE_RANKS, 6  # words: 10 rows over two ranks, padded to 12
  for rank in range(ENGINE_RANKS):
    mine = (rank * rows, (rank + 1) * rows)
    builder.add(
      [rank],
      "mlp.gate_up.weight",
      shape=(2 * rows, HIDDEN),
      dtype="bfloat16",
      parts=[
        reshard.PlacedBox("mlp.gate.weight", [mine, (0, HIDDEN)], at=(0, 0)),
        reshard.PlacedBox("mlp.up.weight", [mine, (0, HIDDEN)], at=(rows, 0)),
      ],
    )
    held = (rank * words, min((rank + 1) * words, VOCABULARY))
    vocabulary = reshard.PlacedBox("embed.weight", [held, (0, HIDDEN)], at=(0, 0))
    builder.add([rank], "embed.weight", (words, HIDDEN), "bfloat16", [vocabulary], padded=held[1] - held[0] < words)
  whole = reshard.PlacedBox("norm.weight", [(0, HIDDEN)], at=(0,))
  builder.add(range(ENGINE_RANKS), "norm.weight", (HIDDEN,), "float32", [whole])
  return builder.finish()


def trainer_by_rules(model: reshard.Model) -> reshard.Layout:
  """By rules: matrices are cut by rows over `tp`, all else is whole on every rank (docs/rules.md)."""
  rules = {
    "axes": [{"name": "tp", "size": 1}],
    "rules": [
      {"match": "mlp.*.weight", "cuts": [{"dim": 0, "axes": ["tp"]}]},
      {"match": "*"},
    ],
  }
  return reshard.rules_layout(json.dumps(rules), model, "trainer", tp=3, offset=ENGINE_RANKS)


def main() -> None:
  model = model_of_mine()
  engine, trainer = fused_engine(model), trainer_by_rules(model)
  for tensor in engine.local(1):
    print(tensor, f"{tensor.padding} elements of padding")
    for fragment in tensor.fragments:
      print("  ", fragment)

  plan = reshard.plan(trainer, engine)
  plan.check()  # every element of the engine's tensors arrives exactly once
  print(plan)

  # Two layouts of the same ranks can be compared by what they hold.
  other = reshard.layout(f"hf:shards={ENGINE_RANKS}", model)
  for difference in reshard.diff(engine, other)[:3]:
    print(difference)


if __name__ == "__main__":
  main()
