# SPDX-License-Identifier: Apache-2.0
"""Protects: the blocks of Python in docs/ run, in order, as one program in an empty folder. What needs vLLM is called
in its own tests; here its calls have the arguments that its functions take."""

import ast
import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

import emulated
import reshard

DOCS = pathlib.Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page, text=None):
  """The blocks of a page, each behind as many empty lines that an error names the line of the page."""
  text = (DOCS / page).read_text() if text is None else text
  return ["\n" * text.count("\n", 0, block.start(1)) + block.group(1) for block in BLOCK.finditer(text)]


def runs(page, blocks, folder, prelude="", env=None):
  """What the blocks print as one program that begins with `prelude`."""
  program = prelude + "".join(f"\nexec(compile({block!r}, 'docs/{page}', 'exec'))" for block in blocks)
  (folder / "page.py").write_text(program)
  command = [sys.executable, "page.py"]
  result = subprocess.run(
    command, cwd=folder, env=os.environ | (env or {}), capture_output=True, text=True, check=False, timeout=600
  )
  assert result.returncode == 0, result.stderr[-3000:]
  return result.stdout


@pytest.mark.parametrize("gpu", ["no GPU", "an emulated GPU"])
def test_the_blocks_of_the_page_run(gpu, tmp_path):
  env = {} if gpu == "no GPU" else emulated.environment(tmp_path)
  blocks = blocks_of("python.md")
  assert len(blocks) > 5
  printed = runs("python.md", blocks, tmp_path, env=env)
  if env:
    assert " cuda:0 cuda:0\n" in printed


def test_the_block_on_fleets_runs(tmp_path):
  printed = runs("elastic.md", blocks_of("elastic.md"), tmp_path)
  assert "3 ['one', 'two']" in printed and "one has version 3" in printed and "two has version 3" in printed


TRACED = """
import reshard, torch

class MyModel(torch.nn.Module):
  def __init__(self, config, rank, tp):
    super().__init__()
    self.rows = torch.nn.Parameter(torch.empty(config["rows"] // tp, 8))
    self.norm = torch.nn.Parameter(torch.empty(8))
    self.part = rank

  def load_weights(self, weights):
    for name, weight in weights:
      own = getattr(self, name)
      own.data.copy_(weight.chunk(4)[self.part] if name == "rows" else weight)

config = {"rows": 16}
mine = reshard.Model.from_tensors("mine", {"rows": ((16, 8), "float32"), "norm": ((8,), "float32")})
"""


def test_the_blocks_on_tracing_run(tmp_path):
  pytest.importorskip("torch")
  text = (DOCS / "tracing.md").read_text().replace('"/models/mine"', "mine")
  blocks = [block for block in blocks_of("tracing.md", text) if "vllm" not in block]
  assert len(blocks) == 2
  printed = runs("tracing.md", blocks, tmp_path, TRACED)
  assert "recording proved with values" in printed and "mul" in printed


DELTAS = """
import pathlib, reshard

for step in (0, 1):
  reshard.synthesize("demo-moe", f"step-{step}", layers=1, seed=step, progress=False)
"""


def test_the_block_on_deltas_runs(tmp_path):
  (block,) = blocks_of("deltas.md")
  printed = runs("deltas.md", [block], tmp_path, DELTAS)
  assert " bytes\n" in printed and "mlp.experts.0.down_proj.weight changed" in printed
  for path in (tmp_path / "step-1").iterdir():
    assert path.read_bytes() == (tmp_path / "copy" / path.name).read_bytes()


def test_the_block_on_checks_of_a_module_runs(tmp_path):
  pytest.importorskip("torch")
  *_, block = blocks_of("check.md")
  assert "1 differ\n  rank 0: parameter 'bias'" in runs("check.md", [block], tmp_path)


def test_the_page_of_the_table_of_checks_has_its_form():
  """It is made by a tool: a row for each class that has a card, and the counts of what rows say."""
  lines = (DOCS / "check_table.md").read_text().splitlines()
  rows = [line.split(" | ") for line in lines if line.startswith("| ") and not line.startswith(("| class", "| ---"))]
  cards = {p.stem for p in (DOCS.parent / "examples/cards/vllm").glob("*.json")}
  assert {row[0].removeprefix("| ") for row in rows} == cards
  assert lines[2].startswith("# Checks of vLLM ")
  verdicts = [row[-1].removesuffix(" |").partition(":")[0] for row in rows]
  counts = dict(reversed(part.split(" ", 1)) for part in lines[4].partition(": ")[2].partition(". ")[0].split(", "))
  assert lines[4].startswith(f"{len(rows)} rows") and {k: int(v) for k, v in counts.items()} == {v: verdicts.count(v) for v in set(verdicts)}


def test_ten_minutes_run(tmp_path):
  """Its commands, by the program that is installed with the package, and its blocks."""
  text = (DOCS / "start.md").read_text()
  commands = re.findall(r"^\$ reshard (.*)$", text, re.MULTILINE)
  assert len(commands) == 4
  for command in commands:
    done = subprocess.run([sys.executable, "-m", "reshard", *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
  printed = runs("start.md", blocks_of("start.md"), tmp_path)
  assert printed.count("RefitReport") == 3 and printed.count("version 3: ") == 2


def test_the_layout_of_your_own_runs(tmp_path):
  blocks = blocks_of("own_layout.md")
  assert len(blocks) == 6
  assert "rank 5 received " in runs("own_layout.md", blocks, tmp_path)


def test_the_block_on_refits_in_the_background_runs(tmp_path):
  prelude = """
import reshard
layout = reshard.layout("hf", reshard.Model.from_tensors("one", {"x": ((2,), "float32")}))
weights, served = bytearray(8), bytearray(8)
session = reshard.Session(
  reshard.local(1)[0], source=layout, source_tensors={"x": weights}, target=layout, target_tensors={"x": served}
)

def forward_and_backward():
  return 1

def update_weights(loss):
  weights[:] = bytes([weights[0] + loss]) * 8
"""
  (block,) = blocks_of("background.md")
  calls = "for version in range(3):\n  assert step(session, version).version == version and served == bytes([version]) * 8"
  runs("background.md", [block, calls + "\nprint(served)"], tmp_path, prelude)


def test_the_block_on_several_targets_runs(tmp_path):
  prelude = """
import reshard
model = reshard.Model.from_tensors("one", {"x": ((2,), "float32")})
source = reshard.layout("hf", model)
mine = {"x": bytearray(8)}
theirs = {"prefill": {"x": bytearray(8)}, "decode": {"x": bytearray(8)}}

def train(tensors):
  tensors["x"][:] = bytes([tensors["x"][0] + 1]) * 8
"""
  (block,) = blocks_of("targets.md")
  call = "print(keep_in_step(reshard.local(1)[0], source, source, source, mine, theirs), theirs)"
  printed = runs("targets.md", [block, call], tmp_path, prelude)
  assert "version 3" in printed and printed.count(r"\x03" * 8) == 2


def test_the_block_on_simulation_runs(tmp_path):
  pytest.importorskip("matplotlib")
  (block,) = blocks_of("simulation.md")
  printed = runs("simulation.md", [block], tmp_path)
  assert "replicas" in printed and "auto" in printed and (tmp_path / "replicas.png").exists()


def test_the_block_on_loading_and_saving_runs(tmp_path):
  pytest.importorskip("torch")
  prelude = """
import reshard, reshard.hf, torch
reshard.synthesize("demo-moe", "path", layers=1)
layout, rank, (group,) = reshard.layout("vllm:tp=1", reshard.open_model("path")), 0, reshard.local(1)
by_rank = {0: reshard.hf.load("path", layout, 0)}
"""
  blocks = [block.replace("tp=8", "tp=1") for block in blocks_of("hf.md")]
  runs("hf.md", blocks, tmp_path, prelude)
  assert reshard.verify(tmp_path / "path", tmp_path / "out").equal
  assert reshard.verify(tmp_path / "path", tmp_path / "whole").equal


def test_the_block_on_routes_runs(tmp_path):
  pytest.importorskip("torch")
  prelude = """
import reshard, torch
model = reshard.Model.from_tensors("rows", {"rows": ((4, 8), "float32")})
trainer, engine, (group,) = reshard.layout("hf", model), reshard.layout("hf", model), reshard.local(1)
mine, theirs = {"rows": torch.ones(4, 8)}, {"rows": torch.zeros(4, 8)}
"""
  (block,) = blocks_of("routes.md")
  assert runs("routes.md", [block, "print(theirs['rows'].sum())"], tmp_path, prelude) == "tensor(32.)\n"


def test_the_block_on_the_layout_of_live_tensors_runs(tmp_path):
  pytest.importorskip("torch")
  prelude = """
import reshard, torch
module = torch.nn.Linear(4, 2)
model = reshard.Model.from_tensors("linear", {"weight": ((2, 4), "float32"), "bias": ((2,), "float32")})
"""
  block, *_ = blocks_of("dtensor.md")
  assert "of_dtensors" in block
  runs("dtensor.md", [block], tmp_path, prelude)


def test_the_block_on_merging_adapters_runs(tmp_path):
  pytest.importorskip("torch")
  prelude = """
import reshard, reshard.lora, torch
config, rank, steps, (group,) = {"lora_alpha": 4}, 0, 2, reshard.local(1)
sizes = {"x.weight": (6, 8), "x.lora_A.default.weight": (2, 8), "x.lora_B.default.weight": (6, 2)}
tensors = {name: torch.ones(*size) for name, size in sizes.items()}
layout = reshard.of_dtensors(tensors)
engine = reshard.layout("hf", reshard.Model.from_tensors("engine", {"x.weight": ((6, 8), "float32")}))
theirs = {"x.weight": torch.zeros(6, 8)}

def train():
  tensors["x.lora_A.default.weight"] += 1
"""
  *adapters, merging, block, modules = blocks_of("lora.md")
  printed = runs("lora.md", [block, "print(theirs['x.weight'].unique(), tensors['x.weight'].unique())"], tmp_path, prelude)
  assert printed.split() == ["tensor([13.])", "tensor([1.])"]  # 1 + 4 / 2 * (2 ranks of 3)
  for name, positional, keywords in calls_in([*adapters, merging, modules]):
    if name in ("reshard.vllm.Trainer", "reshard.sglang.Trainer"):
      made = importlib.import_module(name.rpartition(".")[0]).Trainer
      inspect.signature(made).bind(*[None] * positional, **dict.fromkeys(keywords))
    elif name == "reshard.sglang.Adapter":
      inspect.signature(importlib.import_module("reshard.sglang").Adapter).bind(*[None] * positional)
    elif name == "reshard.lora.of_modules":
      inspect.signature(importlib.import_module("reshard.lora").of_modules).bind(*[None] * positional)


def calls_in(blocks):
  """(the function's name as the block writes it, positional arguments, names of keywords) of every call."""
  for block in blocks:
    for node in ast.walk(ast.parse(block)):
      if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
        yield ast.unparse(node.func), len(node.args), {k.arg for k in node.keywords}


def test_calls_on_modules_have_arguments_that_exist():
  pytest.importorskip("torch")
  blocks = [block for block in blocks_of("megatron_api.md") if "bridge=" in block]
  bound = [
    inspect.signature(reshard.of_modules).bind(*[None] * positional, **dict.fromkeys(keywords))
    for name, positional, keywords in calls_in(blocks)
    if name == "reshard.of_modules"
  ]
  assert len(bound) == 1


def test_calls_of_vllm_have_arguments_that_exist():
  trainer = pytest.importorskip("reshard.vllm")
  file = pathlib.Path(importlib.util.find_spec("reshard").submodule_search_locations[0]) / "tracing/vllm.py"
  (trace,) = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == "trace_vllm"]
  taken = {a.arg for a in trace.args.kwonlyargs}
  seen = []
  for name, positional, keywords in calls_in(blocks_of("tracing.md") + blocks_of("vllm.md") + blocks_of("check.md")[:1]):
    if name == "traced_vllm.layout":
      assert positional == 1 and keywords <= taken, (keywords, taken)
      seen.append(name)
    elif name.startswith("reshard.vllm."):
      function = getattr(trainer, name.rpartition(".")[2])
      inspect.signature(function).bind(*[None] * positional, **dict.fromkeys(keywords))
      seen.append(name)
    elif name.startswith(("trainer.", "pending.")):
      of = trainer.Trainer if name.startswith("trainer.") else importlib.import_module("reshard.engines.pending").PendingUpdate
      inspect.signature(getattr(of, name.rpartition(".")[2])).bind(None, *[None] * positional, **dict.fromkeys(keywords))
      seen.append(name)
  assert {"traced_vllm.layout", "reshard.vllm.Trainer", "reshard.vllm.HttpClient", "trainer.update_async", "pending.result"} <= set(seen)
