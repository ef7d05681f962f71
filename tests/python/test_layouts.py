# SPDX-License-Identifier: Apache-2.0
"""Every rank of every layout of the table, against the slicing oracle; and the way back."""

import json

import pytest

import checkpoints
import program
from layout_table import TABLE
from layout_table_more import MTP
from oracle import expected_ranks
from oracle_model import read_checkpoint
from oracle_tensor import difference
from oracle_values import settle


def rows(table):
  return pytest.mark.parametrize(
    "name, layout", table, ids=[f"{name}-{layout}" for name, layout in table]
  )


@rows(TABLE)
def test_ranks_hold_what_the_framework_slices(name, layout, checkpoint, home_bytes, tmp_path):
  # vLLM's modules have no place for these biases, so nothing leads home from there.
  lossy = name in ("deepseek-bias", "qwen3-bias") and layout.startswith("vllm")
  check(*checkpoint(name), layout, None if lossy else home_bytes(name), tmp_path)


@rows(MTP)
def test_modules_for_multi_token_prediction(name, layout, checkpoint, home_bytes, tmp_path):
  check(*checkpoint(name, mtp=1), layout, home_bytes(name, mtp=1), tmp_path)


@pytest.mark.parametrize("per_layer", [False, True], ids=["one list", "a list a layer"])
def test_tables_of_physical_experts(per_layer, checkpoint, home_bytes, tmp_path):
  # The first layer of the checkpoint is dense: three layers have experts.
  lists = [[7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 7, 3], [0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 2, 2]]
  path = tmp_path / "map.json"
  path.write_text(json.dumps([lists[0], lists[1], lists[0]] if per_layer else lists[0]))
  layout = f"vllm:tp=2,dp=2,ep=4,redundant=4,expert_map={path}"
  check(*checkpoint("deepseek"), layout, home_bytes("deepseek"), tmp_path)


def check(folder, model, layout, home, tmp_path):
  """Every rank against the oracle, then home again, where the file must be `home`; none: refused."""
  out = program.convert(folder, tmp_path / "ranks", "hf", layout)
  ranks = expected_ranks(model, layout)
  written = program.RankFolder(out)
  assert written.manifest["format"] == "reshard-checkpoint"
  assert written.manifest["version"] == 1
  assert written.manifest["world_size"] == len(ranks)
  assert sorted(entry["rank"] for entry in written.manifest["ranks"]) == list(range(len(ranks)))
  assert checkpoints.config_of(out) == checkpoints.config_of(folder)
  stored = {path.name for path in out.glob("*.safetensors")}
  assert stored == set(written.files.values()), "files that no rank names"
  for rank, expected in enumerate(ranks):
    held = written.rank(rank)
    wrong = difference(settle(expected, held), held)
    assert not wrong, f"{layout}, rank {rank} of {len(ranks)}:\n" + "\n".join(wrong)

  if home is None:
    done = program.run("convert", out, tmp_path / "back", "--from", layout, "--to", "hf")
    assert done.returncode == 1 and "bias' is needed by hf but no rank" in done.stderr
    return
  back = program.convert(out, tmp_path / "back", layout, "hf")
  if (back / "model.safetensors").read_bytes() != home:
    wrong = difference(model.tensors, read_checkpoint(back))
    pytest.fail(f"{layout}, back to hf:\n" + "\n".join(wrong))
