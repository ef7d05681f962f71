# SPDX-License-Identifier: Apache-2.0
"""Learns or checks the layout cards of a framework, in a Python that has it.

    python -m reshard.learn vllm FOLDER [CLASS ...]          writes FOLDER/CLASS.json for each class
    python -m reshard.learn vllm FOLDER --check [CLASS ...]  proves those that are there anew

Prints a line for each class: how its card was proved, or why it has none. Ends with 1 if a card that
was to be checked is wrong.
"""

import argparse
import importlib
import json
import logging
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import torch
import transformers

from reshard.learn import NoCard, card_text, learn, prove, tiny


def main() -> int:
  parser = argparse.ArgumentParser(prog="python -m reshard.learn")
  parser.add_argument("framework", choices=["vllm"])
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("classes", nargs="*", metavar="CLASS")
  parser.add_argument("--check", action="store_true")
  chosen = parser.parse_args()
  os.environ["RESHARD_CACHE"] = "off"
  transformers.logging.set_verbosity_error()
  logging.disable(logging.WARNING)
  torch.set_num_threads(1)  # small tensors: threads would wait for each other
  teacher = importlib.import_module(f"reshard.learn.{chosen.framework}")
  known = {name: model_type for model_type, name in teacher.classes()}
  there = [p.stem for p in sorted(chosen.folder.glob("*.json"))]
  wrong, of = 0, chosen.classes or (there if chosen.check else sorted(known))
  for name in of:
    begin = time.monotonic()
    said, good = _one(teacher, name, known.get(name), chosen.folder, chosen.check)
    wrong += not good
    print(f"{name}: {said} ({time.monotonic() - begin:.0f} s)", flush=True)
  print(f"{len(of) - wrong} of {len(of)}")
  return int(chosen.check and wrong > 0)


def _one(
  teacher: Any, name: str, model_type: str | None, folder: pathlib.Path, check: bool
) -> tuple[str, bool]:
  path = folder / f"{name}.json"
  if model_type is None:
    return f"{teacher.FRAMEWORK} and transformers do not both have it", False
  with tempfile.TemporaryDirectory() as work:
    try:
      first, second, unseen = (
        checkpoint(pathlib.Path(work, str(i)), model_type, name, sizes)
        for i, sizes in enumerate((*tiny.SEEN, tiny.UNSEEN))
      )
    except Exception as error:
      return f"no small model: {type(error).__name__}: {str(error).splitlines()[0][:200]}", False
    try:
      if check:
        card = json.loads(path.read_text(encoding="utf-8"))
        return "; ".join(prove(teacher, card, [first, second], unseen)), True
      made = learn(teacher, [first, second], unseen)
    except NoCard as error:
      return f"no card: {error}", False
  path.write_text(card_text(made), encoding="utf-8")
  return str(made["card"]["proof"]), True


def checkpoint(
  folder: pathlib.Path, model_type: str, architecture: str, sizes: tiny.Sizes
) -> pathlib.Path:
  """A small checkpoint of a class, as transformers writes it."""
  config = tiny.config_of(model_type, sizes)
  model = getattr(transformers, architecture)._from_config(config, dtype=torch.bfloat16)
  model.save_pretrained(folder)
  return folder


if __name__ == "__main__":
  sys.exit(main())
