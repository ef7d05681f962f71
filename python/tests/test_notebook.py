# SPDX-License-Identifier: Apache-2.0
"""Law: in a notebook, with a real kernel, objects show as HTML and long operations show a bar."""

import pytest

pytest.importorskip("ipykernel", reason="needs `pip install ipykernel nbclient ipywidgets`")
nbclient = pytest.importorskip("nbclient", reason="needs `pip install ipykernel nbclient ipywidgets`")
nbformat = pytest.importorskip("nbformat")


@pytest.fixture
def run(tmp_path):
  """Runs cells in a new kernel; returns the outputs of each."""

  def cells(*sources):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    return [cell.outputs for cell in book.cells]

  return cells


def shown(outputs, kind):
  return [output["data"][kind] for output in outputs if kind in output.get("data", {})]


def text(outputs):
  return "".join(output.get("text", "") for output in outputs)


SETUP = """
import reshard
model = reshard.open_model("demo-moe")
source, target = reshard.layout("megatron:tp=2,ep=4,etp=1", model), reshard.layout("vllm:tp=2", model)
"""


def test_objects_show_as_html(run):
  _, *outputs = run(SETUP, "model", "source", "reshard.plan(source, target)", "reshard.DType.bf16")
  for output, word in zip(outputs, ("model.layers", "megatron:", "rank 3 to rank 1", None), strict=True):
    found = shown(output, "text/html")
    assert (word is None and found == []) or word in found[0], output
    assert shown(output, "text/plain")
  plan = shown(outputs[2], "text/html")[0]
  assert plan.count("<table") == plan.count("</table>") == 3 and plan.count("rows send, columns receive") == 1


def test_a_conversion_shows_a_bar_of_widgets(run):
  pytest.importorskip("ipywidgets")
  _, outputs, failed = run(
    SETUP + 'reshard.synthesize("demo-moe", "hf", layers=1, progress=False)',
    'print(reshard.convert("hf", "out", to="vllm:tp=2"))',
    """
def stop(phase, done, total):
  raise TimeoutError("no time")
try:
  reshard.convert("hf", "other", to="vllm:tp=2", progress=stop)
except TimeoutError as error:
  print("raised", error)
""",
  )
  bars = shown(outputs, "application/vnd.jupyter.widget-view+json")
  assert len(bars) == 1, outputs
  assert "vllm:tp=2" in text(outputs) and "IProgress" not in text(outputs)
  assert "raised no time" in text(failed)


def test_a_bar_is_text_without_widgets(run):
  """As where ipywidgets is not installed: tqdm warns once, and writes to stderr."""
  _, outputs = run(
    'import sys; sys.modules["ipywidgets"] = None\n' + SETUP + 'reshard.synthesize("demo-moe", "hf", layers=1, progress=False)',
    'print(reshard.convert("hf", "out", to="vllm:tp=2"))',
  )
  assert "vllm:tp=2" in text(outputs)
  assert shown(outputs, "application/vnd.jupyter.widget-view+json") == []
