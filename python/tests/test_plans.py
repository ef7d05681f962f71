# SPDX-License-Identifier: Apache-2.0
"""Protects: a plan in Python says what the program says, and its views agree with each other."""

import json
import os
import subprocess

import pytest

import reshard
from reshard._figures.traffic import traffic_of

MODEL, FROM, TO = "qwen3-30b-a3b", "megatron:tp=4,pp=2,ep=8,etp=1", "vllm:tp=8,offset=16"


def plan_of(model, source, target, **options):
  return reshard.plan(reshard.layout(source, model), reshard.layout(target, model), **options)


@pytest.fixture(scope="module")
def plan():
  return plan_of(reshard.open_model(MODEL), FROM, TO)


def test_totals_are_those_of_the_program(plan):
  program = os.environ.get("RESHARD_BIN")
  if not program:
    pytest.skip("RESHARD_BIN names no program")
  command = [program, "plan", "--model", MODEL, "--from", FROM, "--to", TO, "--json"]
  said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
  assert said.pop("schema") == "reshard.plan/1"
  mine = json.loads(plan.to_json())
  for key in ("plan_seconds", "peak_rss_bytes"):
    said.pop(key), mine.pop(key, None)
  assert {key: mine[key] for key in said} == said
  assert (plan.bytes_wire, plan.digest) == (said["bytes_wire"], said["digest"])
  assert (plan.num_ranks, plan.messages, plan.transfers) == (said["ranks"], said["messages"], said["transfers"])


def test_the_matrix_adds_up(plan):
  traffic = plan.traffic
  assert traffic.format == "q" and traffic.shape == (24, 24)
  rows = traffic.tolist()
  egress = [sum(row) - row[i] for i, row in enumerate(rows)]
  ingress = [sum(row[i] for row in rows) - rows[i][i] for i in range(24)]
  assert plan.egress == egress[: len(plan.egress)] and sum(plan.egress) == plan.bytes_wire
  assert plan.ingress == ingress[: len(plan.ingress)]
  assert max(egress) == plan.max_egress_bytes == egress[plan.busiest_sender]
  assert plan.optimal_max_egress_bytes <= plan.max_egress_bytes
  assert sum(rows[i][i] for i in range(24)) == plan.bytes_local == 0


def test_both_ends_of_a_pair_see_the_same_transfers(plan):
  sender, receiver = plan.rank(3), plan.rank(20)
  sent = [t for t in sender.sends if t.dst == 20]
  assert sent and sent == [t for t in receiver.recvs if t.src == 3]
  assert sum(t.bytes for t in sender.sends) == sender.bytes_sent == plan.egress[3]
  assert sum(t.bytes for t in receiver.recvs) == receiver.bytes_received == plan.ingress[20]
  assert not sender.recvs and not sender.locals
  assert sent[0].tensor in plan.tensors and f"{sent[0].src} -> 20" in repr(sent[0])
  assert len(receiver.to_text(2).splitlines()) <= len(receiver.to_text().splitlines())


def test_a_plan_is_checked_against_its_layouts():
  plan = plan_of(reshard.open_model("demo-moe", layers=2), "megatron:tp=2,ep=2,etp=1", "vllm:tp=2")
  plan.check()
  plan.check(0)
  assert plan.bytes_local > 0 and plan.rank(0).locals


def test_text_and_html_say_what_matters(plan):
  text = str(plan)
  for part in ("61.4 GB", FROM.split(":")[0], "busiest sender", "16 ranks", plan.digest):
    assert part in text
  html = plan._repr_html_()
  assert html.count("title='rank ") == 16 * 8 and "rank 0 to rank 16" in html
  assert "<pre>" in plan.source._repr_html_() and "<pre>" in plan.source.model._repr_html_()
  assert "digraph" in plan.to_dot()
  assert "rank 8" in str(plan.rank(20)) and "receives" in repr(plan.rank(20))
  assert "8 ranks" in repr(plan.target) and "qkv_proj" in str(plan.target)


def test_an_explanation_names_the_busiest_the_bound_and_the_rest():
  model = reshard.open_model("demo-moe", layers=2)
  text = reshard.explain(plan_of(model, "megatron:tp=4", "vllm:tp=2,dtype=float16", only="model.layers.0.*"))
  for part in ("busiest sender is rank", "hold it already", "to F16", "do not move"):
    assert part in text, text


def test_ignore_and_only_are_patterns():
  model = reshard.open_model("demo-moe", layers=2)
  plan = plan_of(model, "hf", "vllm:tp=2,offset=1", only=["model.layers.#.self_attn.*"])
  assert plan.moves("model.layers.1.self_attn.q_proj.weight") and not plan.moves("model.norm.weight")
  assert all(".self_attn." in t.tensor for t in plan.rank(1).recvs)
  plan.check()
  assert plan_of(model, "hf", "vllm:tp=2", ignore="model.norm.*").ignored == {"model.norm.weight"}
  for option in ("ignore", "only"):
    with pytest.raises(reshard.NotFoundError, match="pattern 'x\\*' to"):
      plan_of(model, "hf", "vllm:tp=2", **{option: ["x*"]})
    with pytest.raises(TypeError):
      plan_of(model, "hf", "vllm:tp=2", **{option: [3]})


def test_conversions_and_routes_say_what_happens_to_values():
  model = reshard.open_model("demo-moe", layers=2)
  (use,) = plan_of(model, "megatron:tp=2,dtype=float32", "vllm:tp=2").conversions
  assert (use.source, use.target, use.loses_precision) == ("F32", "BF16", True) and use.example in model.tensors
  quantised = plan_of(model, "megatron:tp=2", "vllm:tp=2,quant=fp8_channel")
  assert quantised.quantises and quantised.routes and quantised.routes[-1].bytes_to < quantised.routes[-1].bytes_from
  assert quantised.routes[-1].example in str(quantised)
  as_stored = plan_of(model, "hf:quant=fp8_block", "vllm:tp=1,quant=fp8_block,quant_grid=tensor")
  assert not as_stored.quantises and as_stored.notes


def test_a_target_can_follow_the_grid_of_its_source():
  model = reshard.open_model("demo-moe", layers=2)
  source = reshard.layout("hf:quant=mxfp8", model)
  target = reshard.layout("vllm:tp=2,quant=mxfp8", model, source=source)
  assert not reshard.plan(source, target).quantises


def test_layouts_of_two_models_have_no_plan(plan):
  other = reshard.layout("hf", reshard.open_model("demo-moe"))
  with pytest.raises(reshard.InvalidArgumentError, match="qwen3-30b-a3b, target one of demo-moe"):
    reshard.plan(plan.source, other)


def test_a_rank_in_neither_layout_is_refused(plan):
  for rank in (24, -1, 10**20):
    with pytest.raises(reshard.InvalidArgumentError, match=f"rank {rank} is not in either layout"):
      plan.rank(rank)
  with pytest.raises(reshard.NotFoundError, match="no tensor 'x'"):
    plan.moves("x")
  with pytest.raises(TypeError):
    reshard.plan(plan.source, "vllm:tp=2")


def test_what_is_too_large_to_show_is_refused():
  model = reshard.Model.from_tensors("m", {"w": ((8192,), "f32")})
  wide = plan_of(model, "hf:shards=1", "hf:shards=5000,offset=1")
  with pytest.raises(reshard.UnsupportedError, match="5001 x 5001"):
    _ = wide.traffic
  assert "is not drawn" in wide._repr_html_()
  assert wide.to_dot().count("label=") < 20


@pytest.mark.parametrize("copies", [1, 16, 128])
def test_a_map_has_few_cells_and_all_bytes(copies):
  model = reshard.open_model("demo-moe", layers=2)
  plan = plan_of(model, f"megatron:tp=4,ep=2,etp=1,dp={2 * copies}", f"vllm:tp=8,replicas={copies},offset={8 * copies}")
  traffic = traffic_of(plan, 64, host=8)
  assert 0 < len(traffic.sources) <= 64 and 0 < len(traffic.targets) <= 64
  assert sum(map(sum, traffic.bytes)) == plan.bytes_wire + plan.bytes_local
  for groups in (traffic.sources, traffic.targets):
    assert [rank for i in range(len(groups)) for rank in groups.members(i)] == list(groups.ranks)
    assert groups.size % 8 == 0 or 8 % groups.size == 0, "a cell has ranks of one host, or whole hosts"
  assert plan._repr_html_().count("<td title=") == len(traffic.sources) * len(traffic.targets)


@pytest.mark.parametrize("copies", [1, 128])
def test_a_plot_starts_at_zero_names_units_and_covers_nothing(copies, tmp_path):
  pytest.importorskip("matplotlib")
  model = reshard.open_model("demo-moe", layers=2)
  plan = plan_of(model, f"megatron:tp=4,ep=2,etp=1,dp={2 * copies}", f"vllm:tp=8,replicas={copies},offset={8 * copies}")
  figure = plan.plot(tmp_path / "plan.png", ranks_per_host=4)
  traffic, bars, scale = figure.axes
  (image,) = traffic.images
  assert image.get_clim() == (0, image.get_array().max()) and bars.get_ylim()[0] == 0
  figure.canvas.draw()
  for axis in (bars.yaxis, scale.yaxis):
    assert all(label.get_text().split()[1].endswith("B") for label in axis.get_ticklabels())
  assert not bars.get_legend().get_window_extent().overlaps(bars.get_window_extent())
  assert len(bars.patches) <= 2 * 128
  with pytest.raises(reshard.InvalidArgumentError, match="ranks_per_host is 0"):
    plan.plot(ranks_per_host=0)


def test_a_plot_is_saved(plan, tmp_path):
  pytest.importorskip("matplotlib")
  figure = plan.plot(tmp_path / "plan.png")
  assert (tmp_path / "plan.png").stat().st_size > 10_000 and len(figure.axes) == 3
