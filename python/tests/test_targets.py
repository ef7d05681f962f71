# SPDX-License-Identifier: Apache-2.0
"""Law: a refit brings each of several targets to one version, whatever layout and format each has; joined layouts are
planned as one."""

import pytest

import reshard
from ranks import errors_in_threads, in_threads
from small_models import assert_equal, model, values, vllm_slices, zeros


def test_engines_in_two_roles_hold_the_version_that_is_committed():
  of = model("moe")
  source = reshard.layout("hf", of)
  prefill, decode = (reshard.layout(text, of) for text in ("vllm:tp=2,offset=1", "vllm:tp=4,offset=3"))

  def body(group):
    mine = values(of, 1) if group.rank == 0 else None
    theirs = [zeros(t, group.rank) if group.rank in t.ranks else None for t in (prefill, decode)]
    with reshard.Session(
      group, source=source, source_tensors=mine, target=[prefill, decode], target_tensors=theirs, verify="always"
    ) as session:
      assert f"{prefill.name} and {decode.name}" in repr(session)
      for version in (1, 2):
        if mine is not None:
          for name, tensor in values(of, version).items():
            mine[name].copy_(tensor)
        session.refit(version)
        for tensors, tp, first in ((theirs[0], 2, 1), (theirs[1], 4, 3)):
          if tensors is not None:
            assert session.target_version().version == version
            assert_equal(tensors, vllm_slices(values(of, version), tp, group.rank - first))
      session.verify()

  in_threads(7, body)


def test_one_rank_holds_the_weights_plain_and_quantised():
  of = model()
  source, plain = reshard.layout("hf", of), reshard.layout("vllm:tp=1,offset=1", of)
  quantised = reshard.layout("vllm:tp=1,offset=1,quant=fp8_channel", of)

  def body(group):
    mine = values(of, 1) if group.rank == 0 else None
    buffers = reshard.RankBuffers.allocate(quantised, [1]) if group.rank == 1 else None
    theirs = zeros(plain, 1) if group.rank == 1 else None
    with reshard.Session(
      group, source=source, source_tensors=mine, target=(plain, quantised), target_tensors=[theirs, buffers]
    ) as session:
      session.refit(1)
      session.verify()
    if theirs is None:
      return
    assert_equal(theirs, vllm_slices(values(of, 1), 1, 0))
    name = "model.layers.0.mlp.down_proj.weight"
    want = reshard.quantise(theirs[name], "fp8_channel")
    assert bytes(buffers.tensor(1, name).raw()) == bytes(want.data.raw())
    assert bytes(buffers.tensor(1, name + "_scale").raw()) == bytes(want.scales.raw())

  in_threads(2, body)


@pytest.mark.parametrize(
  ("wrong", "text"),
  [
    ({"target": []}, "target is an empty list"),
    ({"target_tensors": {}}, "target_tensors must be a list of 2, one entry for each target"),
    ({"target_tensors": [None]}, "target_tensors has 1 entries, but there are 2 targets"),
    ({"target": ["vllm:tp=1", "hf"]}, "target 1 must be a reshard.Layout, not str"),
  ],
)
def test_arguments_that_are_not_lists_as_long_are_refused_on_all_ranks(wrong, text):
  of = model()
  layouts = [reshard.layout(f"vllm:tp=1,offset={i}", of) for i in (1, 2)]

  def body(group):
    right = {"source": reshard.layout("hf", of), "target": layouts}
    reshard.Session(group, **(right | wrong if group.rank == 1 else right))

  errors = errors_in_threads(3, body)
  assert text in str(errors[1]) and isinstance(errors[1], TypeError | reshard.InvalidArgumentError)
  for rank in (0, 2):
    assert text in str(errors[rank]) and isinstance(errors[rank], reshard.InvalidArgumentError)


def test_joined_layouts_are_one_plan():
  of = model("moe")
  both = reshard.layout("vllm:tp=2,offset=1 + vllm:tp=4,offset=3", of)
  parts = [reshard.layout(text, of) for text in ("vllm:tp=2,offset=1", "vllm:tp=4,offset=3")]
  assert both.name == "vllm:offset=1,tp=2 + vllm:offset=3,tp=4"
  assert list(both.ranks) == [1, 2, 3, 4, 5, 6]
  assert [t.name for t in both.local(3)] == [t.name for t in parts[1].local(3)]
  plan = reshard.plan(reshard.layout("hf", of), both)
  alone = [reshard.plan(reshard.layout("hf", of), part) for part in parts]
  assert plan.bytes_total == sum(p.bytes_total for p in alone)


@pytest.mark.parametrize(
  ("text", "error"),
  [
    ("vllm:tp=2 + vllm:tp=2,offset=1", "both have rank 1; give one of them another offset"),
    ("vllm:tp=2 + vlm:tp=2,offset=2", "unknown family 'vlm' (did you mean 'vllm'?)"),
    ("vllm:tp=2 + vllm:offset=2,quant=fp8_channel", "only plain layouts can be joined"),
  ],
)
def test_layouts_that_cannot_be_joined_are_refused_by_name(text, error):
  with pytest.raises(reshard.Error, match=error.replace("(", r"\(").replace(")", r"\)").replace("?", r"\?")):
    reshard.layout(text, model())
