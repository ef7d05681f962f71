# SPDX-License-Identifier: Apache-2.0
"""A draft model is updated with its target, as one version: as many of its tokens are accepted as in an engine that was
started on both."""

import contextlib
import json

import drafts
import pytest
from server import Server


@pytest.fixture(scope="module")
def pairs(checkpoints, tmp_path_factory):
  """pairs[kind, "a" or "b"]: (model, draft model)."""
  root = tmp_path_factory.mktemp("drafts")
  made = {}
  for name, seed in (("a", 3), ("b", 4)):
    base = checkpoints["llama", name]
    drafts.near(base, seed, root / f"near-{name}")
    made["draft_model", name] = base, root / f"near-{name}"
    drafts.shallow(base, root / f"shallow-{name}")
    drafts.eagle(base, seed, root / f"eagle-{name}")
    made["eagle", name] = root / f"shallow-{name}", root / f"eagle-{name}"
  return made


def _speculating(kind, draft, tp):
  said = {"method": kind, "model": str(draft), "num_speculative_tokens": 3}
  return {"tensor_parallel_size": tp, "speculative_config": json.dumps(said)}


def _round(server):
  """The tokens of one round, and how many of the draft model's were accepted in it."""
  before = server.accepted()
  return server.generate(), server.accepted() - before


@pytest.mark.parametrize(("kind", "tp"), [("draft_model", 1), ("draft_model", 2), ("eagle", 1)])
def test_a_draft_model_follows_its_target(pairs, trainer, kind, tp):
  (a, draft_a), (b, draft_b) = pairs[kind, "a"], pairs[kind, "b"]
  with contextlib.closing(Server(b, **_speculating(kind, draft_b, tp))) as fresh:
    of_b = _round(fresh)
  with contextlib.closing(Server(a, **_speculating(kind, draft_a, tp))) as server:
    of_a = _round(server)
    assert of_a[0] != of_b[0] and of_b[1] > 10
    options = {"program": "draft_trainer.py", "draft": str(draft_a)}
    both = trainer(server, tp, "megatron:tp=2", 2, a, **options)
    both.update(b, draft_b)
    assert _round(server) == of_b
    both.update(a, draft_a)
    assert _round(server) == of_a
    both.close()
    target = trainer(server, tp, "hf", 1, a)
    target.update(b)
    tokens, accepted = _round(server)
    assert tokens == of_b[0] and accepted < of_b[1]
    target.close()
    draft = trainer(server, tp, "megatron:tp=2", 2, a, only=["draft:*"], **options)
    draft.update(a, draft_b)
    assert _round(server) == of_b
    draft.close()
