# SPDX-License-Identifier: Apache-2.0
"""Law: a session that traces writes one valid file after each refit, and says the same on all ranks."""

import json
import pathlib
import re

import numpy as np
import pytest

import reshard
from ranks import errors_in_threads, in_threads

DOC = (pathlib.Path(__file__).parents[2] / "docs" / "trace.md").read_text()
CONFIG = {
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "intermediate_size": 96,
  "vocab_size": 128,
  "torch_dtype": "float32",
  "tie_word_embeddings": False,
}


@pytest.fixture(name="of")
def make_model(tmp_path):
  (tmp_path / "config.json").write_text(json.dumps(CONFIG))
  return reshard.open_model(tmp_path / "config.json")


def session_of(group, of, **options):
  source, target = reshard.layout("hf", of), reshard.layout("vllm:tp=2,offset=1", of)

  def tensors(layout):
    here = group.rank in layout.ranks
    return {t.name: np.zeros(t.shape, np.float32) for t in layout.local(group.rank)} if here else None

  return reshard.Session(
    group, source=source, source_tensors=tensors(source), target=target, target_tensors=tensors(target), **options
  )


@pytest.mark.parametrize("path", ["direct", "message"])
def test_each_refit_writes_a_trace_of_all_ranks(of, path, tmp_path):
  def body(group):
    session = session_of(group, of, path=path, trace=tmp_path / "trace.json")
    assert session.why_slow is None
    for version in (1, 2):
      session.refit(version)
      trace = json.loads((tmp_path / "trace.json").read_text())
      assert trace["otherData"]["version"] == version
      assert {event["pid"] for event in trace["traceEvents"]} == {0, 1, 2}
      assert any(event["ph"] == "f" for event in trace["traceEvents"]) == (path == "message")
      group.barrier()
    return session.why_slow

  first, *others = in_threads(3, body)
  assert all(other == first for other in others)
  assert first["slowest_rank"] in (0, 1, 2) and first["slowest_link"]["from"] == 0
  assert first["problem"] == "" and "of the bound" in first["text"]
  for key in (*first, *first["slowest_link"]):
    assert key in ("problem", "text") or re.search(f"`{key}`", DOC)


def test_without_a_trace_nothing_is_written(of, tmp_path):
  def body(group):
    session = session_of(group, of)
    session.refit(1)
    return session.why_slow

  assert in_threads(3, body) == [None] * 3
  assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
  ("trace", "kind", "text"),
  [
    (None, reshard.InvalidArgumentError, "session option trace"),
    (3, TypeError, "rank 1: trace must be a str, a path or None, not int"),
    ("", reshard.InvalidArgumentError, "rank 1: trace: the path is empty"),
  ],
)
def test_all_ranks_learn_of_another_trace_of_one(of, trace, kind, text, tmp_path):
  def body(group):
    session_of(group, of, trace=trace if group.rank == 1 else str(tmp_path / "trace.json"))

  errors = errors_in_threads(3, body)
  assert isinstance(errors[1], kind)
  for rank in (0, 2):
    assert isinstance(errors[rank], reshard.InvalidArgumentError) and text in str(errors[rank])
