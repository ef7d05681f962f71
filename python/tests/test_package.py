# SPDX-License-Identifier: Apache-2.0
"""Protects: the installed package is whole: typed, light to import, with its transports, configs and documentation."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import sysconfig

import pytest

import reshard
from reshard import _errors

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = pathlib.Path(reshard.__file__).parent


def run(code, **environment):
  env = {k: v for k, v in os.environ.items() if not k.startswith("RESHARD_")} | environment
  return subprocess.run([sys.executable, "-c", code], cwd="/", env=env, capture_output=True, text=True, check=False)


def test_importing_loads_no_other_library():
  code = "import sys, reshard; print(*sorted(m.split('.')[0] for m in sys.modules))"
  loaded = set(run(code).stdout.split())
  assert "reshard" in loaded
  assert not loaded & {"torch", "numpy", "tqdm", "matplotlib", "jax", "vllm", "transformers"}


def test_public_names_are_listed_once():
  assert reshard.__all__ == sorted(set(reshard.__all__))


def test_stubs_are_installed():
  assert (PACKAGE / "py.typed").exists()
  stub = (PACKAGE / "_core.pyi").read_text()
  for name in reshard.__all__:
    assert name in stub or not getattr(getattr(reshard, name), "__module__", "").endswith("_core"), name


def test_the_extension_has_the_stable_abi_where_python_does():
  name = pathlib.Path(importlib.import_module("reshard._core").__file__).name
  threaded = sysconfig.get_config_var("Py_GIL_DISABLED")  # a build without the GIL has none
  stable = sys.version_info >= (3, 12) and not threaded
  assert name == "_core" + (".abi3.so" if stable else sysconfig.get_config_var("EXT_SUFFIX"))


def test_configs_come_with_the_package():
  result = run("import reshard; print(reshard.open_model('qwen3-4b').config.architecture)")
  assert result.stdout.strip() == "Qwen3ForCausalLM", result.stderr
  installed = PACKAGE / "configs"
  if installed.exists():
    assert {path.stem for path in installed.glob("*.json")} == set(reshard.example_names())


def test_the_program_comes_with_the_package():
  if not (PACKAGE / "reshard").exists():
    pytest.skip("built with RESHARD_CLI=OFF")
  for command in ([sys.executable, "-m", "reshard"], [str(pathlib.Path(sys.executable).with_name("reshard"))]):
    said = subprocess.run([*command, "--version"], cwd="/", capture_output=True, text=True, check=True).stdout
    assert said == f"reshard {reshard.__version__}\n"
    wrong = subprocess.run([*command, "plan"], cwd="/", capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "--model" in wrong.stderr
  planned = [sys.executable, "-m", "reshard", "plan", "--model", "qwen3-4b", "--from", "hf", "--to", "vllm:tp=2"]
  said = subprocess.run([*planned, "--cluster", "dgx-h100-400g"], cwd="/", capture_output=True, text=True, check=True).stdout
  assert "on DGX H100" in said


def test_notes_are_added_to_errors():
  error = reshard.NotFoundError("first")
  for text in ("second", "third"):
    _errors.add_note(error, text)
  assert error.__notes__ == ["second", "third"] and str(error) == "first"


def test_transports_come_with_the_package():
  table = {info.name: info for info in reshard.transports()}
  assert list(table) == reshard.transport_names() and table["inproc"].available and table["inproc"].purpose
  for info in table.values():
    assert info.available or info.reason
    assert "is not in" not in info.reason, info.reason
  for module in PACKAGE.glob("reshard_transport_*.so"):
    assert table[module.stem.split("_")[2]].built
  assert reshard.find_transport("nope") is None and reshard.find_transport("shm").name == "shm"


def test_launchers_are_recognised():
  code = "import reshard; print(reshard.launched())"
  assert run(code).stdout.strip() == "None"
  torchrun = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
  assert "rank 1 of 4" in run(code, **torchrun).stdout
  assert "InvalidArgumentError" in run(code, **(torchrun | {"RANK": "one"})).stderr


def test_a_broken_module_is_named(tmp_path):
  (tmp_path / "reshard_transport_gloo.so").write_text("no library")
  code = "import reshard; print(reshard.find_transport('gloo').reason)"
  assert "its module does not load" in run(code, RESHARD_MODULES=str(tmp_path)).stdout


def examples():
  found = sorted(map(str, (ROOT / "examples/python").rglob("*.py")))
  assert len(found) >= 3
  return found


CHECKED = {"examples": examples, "the package": lambda: [str(PACKAGE)]}


@pytest.fixture(scope="module")
def types_of_torch(tmp_path_factory):
  """A cache of mypy's: torch takes longer to check than the package and the examples."""
  return tmp_path_factory.mktemp("mypy")


@pytest.mark.parametrize("what", CHECKED)
def test_a_strict_type_checker_passes(what, tmp_path, types_of_torch):
  pytest.importorskip("mypy")
  files = ["-p", "reshard"] if what == "the package" else CHECKED[what]()
  options = ["--strict", "--python-version", "3.10", "--cache-dir", str(types_of_torch), "--ignore-missing-imports"]
  command = [sys.executable, "-m", "mypy", *options, "--config-file", str(ROOT / "pyproject.toml"), *files]
  env = os.environ | {"MYPYPATH": ""}
  result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
  assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("what", CHECKED)
def test_pyright_passes(what, tmp_path):
  """By basedpyright: pyright's own checker and rules, with a node of its own."""
  pytest.importorskip("basedpyright", reason="needs `pip install basedpyright` (280 MB, most of it node)")
  untyped = tmp_path / "typings/transformers/__init__.pyi"  # as for mypy in pyproject.toml
  untyped.parent.mkdir(parents=True)
  untyped.write_text("from typing import Any\ndef __getattr__(name: str) -> Any: ...\n")
  settings = {
    "include": CHECKED[what](),
    "exclude": [],
    "stubPath": "typings",
    "typeCheckingMode": "standard",
    "reportMissingImports": False,
  }
  (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
  command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable, "--warnings"]
  result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
  assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["plan.py", "convert.py", "own_layout.py"])
def test_an_example_runs(name, tmp_path):
  command = [sys.executable, str(ROOT / "examples/python" / name)]
  result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
  assert result.returncode == 0, result.stderr
  assert result.stdout
