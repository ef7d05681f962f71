# SPDX-License-Identifier: Apache-2.0
"""Every class through all frameworks that know it, and home: the same tensors bit for bit, and the same logits of
transformers' own class. `make test` takes a sample; `make models-test` takes all, and prints a table."""

import collections
import os
import pathlib
import re

import pytest
import torch

import class_chains
import class_models
import program
from oracle_model import read_checkpoint
from oracle_tensor import difference

KNOWN = class_chains.known()
ROWS = [(name, form) for name in KNOWN for form in (None, *class_chains.forms_of(name))]
ALL = bool(os.environ.get("RESHARD_ALL_MODELS"))
SAMPLE = {
  ("DeepseekV2ForCausalLM", None), ("Ernie4_5_MoeForCausalLM", None), ("JambaForCausalLM", None),
  ("LagunaForCausalLM", None), ("Qwen2_5_VLForConditionalGeneration", None),
  ("Qwen3_5MoeForCausalLM", "experts in one tensor and multi-token prediction"),
}  # fmt: skip
# Computes nothing from text alone.
NO_LOGITS = {"Blip2ForConditionalGeneration"}


def label(row):
  return row[0] if row[1] is None else f"{row[0]}, {row[1]}"


@pytest.fixture(scope="module")
def table(request):
  """A list of rows, which is printed at the end if it has all of them."""
  rows = []
  yield rows
  if not ALL:
    return
  with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
    print("\n\n" + "\n".join(" | ".join(row) for row in rows))
    equal = {row[0] for row in rows if row[-1] == "equal logits"}
    print(f"{len(rows)} checkpoints came home, {len(equal)} of them with equal logits")


def chain(name, frameworks, experts, folder, work, ignored=()):
  """Converts a checkpoint to a layout of each framework, and back to hf. Returns the layouts."""
  work.mkdir()
  through, at = [], folder
  for framework in frameworks:
    first = ignored if at == folder else ()
    layout, report = class_chains.converted(name, framework, experts, at, work / framework, first, ignored)
    assert "left out" not in report or ignored, report
    through.append(layout)
    at = work / framework
  program.convert(at, work / "home", through[-1], "hf")
  return through


def says_what_is_lost(row, framework, experts, folder, work):
  """Whether the framework rounds or leaves out weights of the checkpoint, as tables say and the program reports."""
  name, form = row
  if said := class_chains.ROUNDED.get((name, framework)):
    assert said in class_chains.converted(name, framework, experts, folder, work / "rounded")[1]
    return True
  patterns = class_chains.left_out(name, form, framework)
  if patterns is None:
    return False
  layout, report = class_chains.converted(name, framework, experts, folder, work / f"lost-{framework}")
  lost = [n for n in read_checkpoint(folder) if class_chains.matches(patterns, n)]
  assert re.search(rf"^left out {len(lost)} tensors?, which {layout.partition(':')[0]}:", report, re.M), report
  done = program.run("convert", work / f"lost-{framework}", work / "refused", "--to", "hf")
  assert done.returncode == 1 and "is needed by hf but no rank of" in done.stderr
  return True


def came_home(folder, expected, home):
  """These tensors of a checkpoint, bit for bit, and its config."""
  wrong = difference(expected, read_checkpoint(home))
  assert not wrong, "\n".join(wrong)
  assert class_models.config_of(home) == class_models.config_of(folder)


def computes_the_same(name, folder, home):
  before, after = class_models.logits(folder, name), class_models.logits(home, name)
  assert before.isfinite().all() and before.std() > 0
  assert torch.equal(before, after)


@pytest.mark.parametrize("row", [r for r in ROWS if ALL or r in SAMPLE], ids=label)
def test_a_class_comes_home(row, tmp_path, table):
  name, form = row
  stored, base = class_chains.forms_of(name).get(form), class_chains.base_of(name)
  folder = class_models.write_model(tmp_path / "model", name, stored, base)
  before = read_checkpoint(folder)
  experts = any("expert" in n for n in before)
  of_form = class_chains.of_form(name, form, KNOWN[name])
  for framework in set(KNOWN[name]) - set(of_form):
    done = program.run("convert", folder, tmp_path / "unread", "--to", class_chains.simplest(framework))
    assert done.returncode == 1 and "no rule of the card" in done.stderr, framework + done.stdout
  lossy = [f for f in of_form if says_what_is_lost(row, f, experts, folder, tmp_path)]
  left_out = {class_chains.left_out(name, form, f) for f in lossy} - {None}
  computed = name not in NO_LOGITS
  if whole := [f for f in of_form if f not in lossy]:
    through = chain(name, whole, experts, folder, tmp_path / "whole")
    came_home(folder, before, tmp_path / "whole" / "home")
    if computed:
      computes_the_same(name, folder, tmp_path / "whole" / "home")
    table.append((label(row), " ".join(through), f"{len(before)} tensors", "equal logits" if computed else "-"))
  for patterns in left_out:  # what is left out, left out from the beginning: all else comes home from everywhere
    work = tmp_path / "rest"
    rest = {n: t for n, t in before.items() if not class_chains.matches(patterns, n)}
    frameworks = [f for f in KNOWN[name] if f in of_form or "left out" in (form or "")]
    through = chain(name, frameworks, experts, folder, work, ("--ignore", *patterns))
    came_home(folder, rest, work / "home")
    table.append((f"{label(row)} without {' '.join(patterns)}", " ".join(through), f"{len(rest)} of {len(before)} tensors", "-"))
  assert len(whole) > 1 or left_out or len(KNOWN[name]) == 1 + len(lossy)


def test_the_page_counts_the_classes():
  page = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text()
  said = {tuple(layouts.split(", ")): int(n) for layouts, n in re.findall(r"^\| ([a-z, ]+) \| (\d+) \|$", page, re.M)}
  assert said == collections.Counter(map(tuple, KNOWN.values()))
  kept = [n for n, of in KNOWN.items() if len(class_chains.without_loss(n, of)) > 1]
  computed = [n for n in kept if n not in NO_LOGITS]
  assert re.search(rf"^{len(KNOWN)} classes are known to at least two", page, re.M)
  assert re.search(rf"^{len(kept)} classes go through two layouts or more without a loss; of {len(computed)} of these", page, re.M)
  assert f"`make test` takes {('no', 'one', 'two', 'three', 'four', 'five', 'six')[len(SAMPLE)]} checkpoints" in page
