# SPDX-License-Identifier: Apache-2.0
"""Law: Python predicts what `reshard plan --cluster` does, and sweeps are these predictions."""

import json
import os
import subprocess

import pytest

import reshard

TWO_HOSTS = {"name": "two hosts", "ranks_per_host": 4, "nics": {"per_host": 1, "bytes_per_second": 1e9}}


@pytest.fixture(scope="module")
def model():
  return reshard.open_model("qwen3-4b")


@pytest.mark.parametrize("routes", ["direct", "auto"])
@pytest.mark.parametrize("target", ["vllm:tp=8,replicas=2,offset=8", "vllm:tp=8,replicas=16,offset=8"])
def test_the_prediction_is_that_of_the_program(model, target, routes):
  plan = reshard.plan(reshard.layout("megatron:tp=8", model), reshard.layout(target, model))
  found = plan.simulate("dgx-h100-400g", routes=routes)
  program = os.environ.get("RESHARD_BIN")
  if program is None:
    pytest.skip("RESHARD_BIN names no program")
  command = [program, "plan", "--model", "qwen3-4b", "--from", "megatron:tp=8", "--to", target, "--cluster", "dgx-h100-400g"]
  said = json.loads(subprocess.run([*command, "--routes", routes, "--json"], capture_output=True, check=True).stdout)
  assert (found.bound_by, found.busiest_link) == (said["bound_by"], said["simulation"]["busiest_link"])
  for name in ("predicted_seconds", "bound_seconds"):  # JSON has nine digits
    assert getattr(found, name) == pytest.approx(said[name], rel=1e-8), name
  for name in ("busiest_link_bytes", "busiest_link_use"):
    assert getattr(found, name) == pytest.approx(said["simulation"][name], rel=1e-8), name
  for name in ("of", "has_rates", "slowest_rank"):
    assert getattr(found, name) == said["simulation"][name], name
  rows = found.rows()
  assert [row["moved_seconds"] for row in rows] == pytest.approx(said["simulation"]["moved_seconds"], rel=1e-8)
  assert [row["rank"] for row in rows] == list(range(plan.num_ranks)) or found.of == "programs"
  assert found.relays == (routes == "auto")


def test_a_cluster_is_a_name_a_file_or_a_dict(model, tmp_path):
  plan = reshard.plan(reshard.layout("megatron:tp=4", model), reshard.layout("vllm:tp=4,offset=4", model))
  assert "dgx-h100-400g" in reshard.cluster_names()
  found = plan.simulate(TWO_HOSTS)
  assert found.cluster == "two hosts" and found.bound_by.startswith("NIC 0")
  assert found.predicted_seconds == pytest.approx(plan.bytes_wire / 1e9, rel=0.01)
  assert "two hosts" in str(found) and "100 % used" in repr(found)
  (tmp_path / "mine.json").write_text(json.dumps(TWO_HOSTS))
  assert plan.simulate(tmp_path / "mine.json").predicted_seconds == found.predicted_seconds
  unknown = plan.simulate({"name": "bare", "ranks_per_host": 8})
  assert not unknown.has_rates and "unknown" in str(unknown)
  with pytest.raises(reshard.NotFoundError, match="dgx-h100-40g"):
    plan.simulate("dgx-h100-40g")
  with pytest.raises(reshard.CorruptError, match="ranks_per_host"):
    plan.simulate({"name": "none"})
  with pytest.raises(TypeError, match="cluster cannot be written as JSON"):
    plan.simulate({"name": object()})
  with pytest.raises(TypeError, match="cluster must be a name, a path or a dict, not int"):
    plan.simulate(3)
  with pytest.raises(reshard.InvalidArgumentError, match="must be one of 'direct', 'auto'"):
    plan.simulate(TWO_HOSTS, routes="scenic")


def test_a_sweep_has_a_prediction_for_every_combination(model, tmp_path):
  found = reshard.sweep(
    model,
    "megatron:tp={tp}",
    "vllm:tp={tp},replicas={replicas},offset={tp}",
    "dgx-h100-400g",
    routes=("direct", "auto"),
    replicas=(1, 2, 4),
    tp=(4, 8),
  )
  assert len(found) == 12
  assert [(row["replicas"], row["tp"], row["routes"]) for row in found.rows][:4] == [
    (1, 4, "direct"), (1, 4, "auto"), (1, 8, "direct"), (1, 8, "auto"),
  ]  # fmt: skip
  for row in found.rows:
    layouts = f"megatron:tp={row['tp']}", f"vllm:tp={row['tp']},replicas={row['replicas']},offset={row['tp']}"
    plan = reshard.plan(*(reshard.layout(text, model) for text in layouts))
    assert row["predicted_seconds"] == plan.simulate("dgx-h100-400g", routes=row["routes"]).predicted_seconds
    assert row["ranks"] == row["tp"] * (1 + row["replicas"])
  direct, routed = ([r["predicted_seconds"] for r in found.rows if r["tp"] == 8 and r["routes"] == way] for way in ("direct", "auto"))
  assert direct[2] > 3 * direct[0] and routed[2] < 1.5 * routed[0]
  text = str(found)
  assert len(text.splitlines()) == 14 and "predicted" in text and "auto" in text
  pytest.importorskip("matplotlib")
  figure = found.plot(tmp_path / "sweep.png")
  (axes,) = figure.axes
  assert (tmp_path / "sweep.png").stat().st_size > 10_000
  assert len(axes.lines) == 2 * 4 and axes.get_yscale() == "log" and axes.get_xlabel() == "replicas"
  assert [t.get_text() for t in axes.get_legend().get_texts()][0] == "tp 4, routes direct"
  few = reshard.Sweep([row for row in found.rows if row["tp"] == 8], ["replicas"])
  (axes,) = few.plot().axes
  assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0 and len(axes.lines) == 2 * 2


def test_sizes_may_be_added_and_multiplied(model):
  found = reshard.sweep(
    model, "megatron:tp={tp}", "vllm:tp={tp},offset={2*tp + tp}", [TWO_HOSTS, "one-host"], tp=(1, 2)
  )
  assert [(row["tp"], row["cluster"]) for row in found.rows] == [
    (tp, cluster) for tp in (1, 2) for cluster in ("two hosts", found.rows[1]["cluster"])
  ]


@pytest.mark.parametrize(
  ("target", "sizes", "why"),
  [
    ("vllm:tp={tp},offset=8", {"tp": [2], "pp": [1]}, r"no notation has \{pp\}"),
    ("vllm:tp={tp},offset={n}", {"tp": [2]}, r"no sizes for \{n\}"),
    ("vllm:tp=2,offset=8", {}, "no sizes"),
    ("vllm:tp={tp},offset={8-tp}", {"tp": [2]}, "only names and numbers"),
    ("vllm:tp={tp,offset=8", {"tp": [2]}, "expected '}'"),
  ],
)
def test_a_sweep_that_cannot_be_says_why(model, target, sizes, why):
  with pytest.raises(reshard.InvalidArgumentError, match=why):
    reshard.sweep(model, "megatron:tp=8", target, "dgx-h100-400g", **sizes)


def test_an_error_names_the_combination(model):
  with pytest.raises(reshard.Error) as caught:
    reshard.sweep(model, "megatron:tp={tp}", "vllm:tp=8,offset=8", "dgx-h100-400g", tp=(4, 3))
  assert getattr(caught.value, "__notes__", ["in sweep() at tp=3"]) == ["in sweep() at tp=3"]
