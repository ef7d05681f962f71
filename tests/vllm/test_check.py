# SPDX-License-Identifier: Apache-2.0
"""Protects: a check says that a worker of vLLM is equal to a fresh load after reshard's updates, and finds each fault that would
make it serve other weights: also those of vLLM's own reload that reshard repairs, when a repair is switched off. Workers are
vLLM's own models in this process."""

import pathlib
import subprocess
import sys

import pytest

reshard = pytest.importorskip("reshard")

import torch  # noqa: E402
from reshard.check import DifferenceError, table, table_vllm  # noqa: E402
from reshard.check.engine_vllm import DirectClient, running  # noqa: E402
from reshard.learn.__main__ import checkpoint  # noqa: E402
from reshard.vllm import Trainer, reload  # noqa: E402

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  """pair(name, **config) -> two checkpoints of a class with other values."""
  made = {}

  def get(name):
    if name not in made:
      root = tmp_path_factory.mktemp(name)
      model = checkpoint(root / "made", name, table_vllm.SIZES)
      made[name] = [table.varied(model, root / str(seed), seed) for seed in (1, 2)]
    return made[name]

  return get


class Held:
  """A trainer of a worker in this process, that holds a checkpoint."""

  def __init__(self, worker, folder, **options):
    layout = reshard.layout("hf", reshard.open_model(folder))
    stored = table.tensors_of(folder)
    self.tensors = {t.name: stored[t.name] for t in layout.local(0)}
    self.trainer = Trainer(layout, self.tensors, client=DirectClient(worker), **options)

  def hold(self, folder):
    stored = table.tensors_of(folder)
    for name, tensor in self.tensors.items():
      tensor.copy_(stored[name])

  def update(self, folder):
    self.hold(folder)
    self.trainer.update()


@pytest.mark.parametrize("route", ["local", "checkpoint"])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "OlmoeForCausalLM"])
def test_an_engine_is_equal_before_and_after_updates(pair, name, route):
  a, b = pair(name)
  with running(a) as worker:
    held = Held(worker, a, route=route, check=True)
    for folder in (None, b, a):
      if folder is not None:
        held.update(folder)
      report = held.trainer.check().raise_for_difference()
      assert report.ranks == [0] and report.compared["native"] > 0 and not report.unset and not report.shared
      assert report.compared["parameter"] >= len(list(worker.model.named_parameters()))
      assert report.bytes >= sum(t.nbytes for t in worker.model.parameters())
    held.hold(b)
    report = held.trainer.check()
    assert len({d.module for d in report.differences}) > 10  # the trainer has trained, and the engine has not
    held.trainer.close()


FAULTS = {
  "an overwritten parameter": ("LlamaForCausalLM", lambda m: m.model.norm.weight.data[3:4].fill_(7), "model.norm.weight", "parameter"),
  "a stale buffer": ("LlamaForCausalLM", lambda m: m.model.layers[0].self_attn.rotary_emb.cos_sin_cache.mul_(2), "cos_sin_cache", "buffer"),
  "another kernel's memory": (
    "LlamaForCausalLM",
    lambda m: setattr(m.model.layers[1].mlp.down_proj, "cpu_linear", m.model.layers[0].mlp.down_proj.cpu_linear),
    "model.layers.1.mlp.down_proj.cpu_linear.<handler>.<packed>", "native",
  ),
  "a broken tie": ("GPT2LMHeadModel", lambda m: setattr(m.lm_head, "weight", torch.nn.Parameter(m.lm_head.weight.clone(), False)), "lm_head.weight", "alias"),
  "a number": ("LlamaForCausalLM", lambda m: setattr(m.model.layers[0].self_attn.attn.impl, "scale", 1.0), "self_attn.attn.impl.scale", "number"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(pair, fault):
  name, spoil, path, kind = FAULTS[fault]
  a, _ = pair(name)
  with running(a) as worker:
    held = Held(worker, a)
    spoil(worker.model)
    found = held.trainer.check().differences
    assert any(d.path.endswith(path) and d.kind == kind for d in found), found
    assert all(d.path.endswith(path) for d in found), found
    held.trainer.close()


REPAIRS = {
  "_prepare": ("OlmoeForCausalLM", "routed_experts.w13_weight", "parameter"),
  "_process_tied": ("GPT2LMHeadModel", "lm_head.cpu_linear.<handler>.<packed>", "native"),
  "_copy_unpacked": ("Mamba2ForCausalLM", "mixer.conv_weights", "buffer"),
  "_share_biases": ("GptOssForCausalLM", "moe_quant_config._w1.bias", "alias"),
}


@pytest.mark.parametrize("repair", REPAIRS)
def test_a_repair_of_the_reload_that_is_switched_off_is_found_and_nothing_is_served(pair, monkeypatch, repair):
  name, path, kind = REPAIRS[repair]
  a, b = pair(name)
  if repair == "_copy_unpacked" and not torch.cpu._is_avx512_bf16_supported():
    pytest.skip("this processor's kernels do not pack convolutions")
  with running(a) as worker:
    held = Held(worker, a, check=1)
    with monkeypatch.context() as broken:
      broken.setattr(reload, repair, lambda *_: None)
      with pytest.raises(DifferenceError, match="differ") as error:
        held.update(b)
    found = error.value.report.differences
    assert all(d.kind == kind and d.path.endswith(path) or "routed_experts" in d.path for d in found), found
    assert any(d.path.endswith(path) and d.kind == kind for d in found)
    with pytest.raises(reshard.AbortedError, match="torn: it differs from a fresh load"):
      worker.model(input_ids=None, positions=None)
    held.trainer.close()
    held = Held(worker, a, check=1)  # the next update mends it
    held.update(b)
    assert not worker.engine._torn
    held.trainer.close()


def test_what_the_reload_of_vllm_loses_is_found(pair):
  """gpt-oss's loader writes sinks and biases past the loaders that a layerwise reload watches."""
  a, b = pair("GptOssForCausalLM")
  with running(a) as worker:
    worker.reload(table.tensors_of(b).items())
    found = table.places_of(worker.check(b))
    assert {"model.layers.#.attn.sinks", "model.layers.#.mlp.experts.routed_experts.w13_bias"} <= set(found)
  with running(a) as worker:
    held = Held(worker, a, check=1, route="local")
    held.update(b)
    held.trainer.close()
  with running(a) as worker:
    held = Held(worker, a, check=1, route="checkpoint")
    with pytest.raises(DifferenceError, match="sinks"):
      held.update(b)
    held.trainer.close()


def test_the_command_compares_and_ends_with_1_if_something_differs(pair):
  a, b = pair("OlmoeForCausalLM")
  for more, code, text in (([], 0, ": equal\n"), (["--reload"], 1, "differ\n")):
    done = subprocess.run(
      [sys.executable, "-m", "reshard.check", "vllm", a, "--to", b, *more], capture_output=True, text=True, check=False
    )
    assert done.returncode == code and text in done.stdout, done.stdout + done.stderr[-2000:]


def test_a_row_of_the_page_is_what_the_tool_makes():
  """The page has a row for each card; this one is made anew."""
  lines = (DOCS / "check_table.md").read_text().splitlines()
  if table_vllm.ENGINE not in lines[2]:
    pytest.skip(f"the page is of another release: {lines[2]}")
  (row,) = table.rows(["GPT2LMHeadModel"], ["plain"], table_vllm.row)
  assert table.line_of(row) in lines and row.verdict == table.REPAIRED
