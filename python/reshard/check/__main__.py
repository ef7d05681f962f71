# SPDX-License-Identifier: Apache-2.0
"""Checks an engine against fresh loads, in a Python that has it. docs/check.md.

    python -m reshard.check vllm FOLDER [--to FOLDER] [--reload]   starts on FOLDER, updates to another checkpoint, compares
    python -m reshard.check table vllm [CLASS ...] [--out FILE]    the table of the engine's classes

Ends with 1 if something differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import pathlib
import sys
from collections.abc import Sequence

import torch

import reshard
from reshard.check import table

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
  """The program."""
  parser = argparse.ArgumentParser(prog="python -m reshard.check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  commands = parser.add_subparsers(dest="command", required=True)
  one = commands.add_parser("vllm", help="a checkpoint, in a worker of vLLM in this process")
  one.add_argument("folder", type=pathlib.Path)
  one.add_argument("--to", type=pathlib.Path, help="the checkpoint to update to; by default the same values again")
  one.add_argument("--reload", action="store_true", help="update by the engine's own reload instead of reshard's")
  one.add_argument("--json", action="store_true")
  many = commands.add_parser("table", help="all classes that have a layout card")
  many.add_argument("engine", choices=["vllm"])
  many.add_argument("classes", nargs="*", metavar="CLASS")
  many.add_argument("--formats", default="plain", help="with commas: plain, or formats of docs/quantisation.md")
  many.add_argument("--out", type=pathlib.Path)
  chosen = parser.parse_args(arguments)
  torch.set_num_threads(1)  # small tensors: threads would wait for each other
  os.environ.setdefault("TQDM_DISABLE", "1")
  logging.disable(logging.ERROR)
  return _table(chosen) if chosen.command == "table" else _one(chosen)


def _one(chosen: argparse.Namespace) -> int:
  rows = importlib.import_module("reshard.check.table_vllm")
  report = rows.updated(chosen.folder, chosen.to or chosen.folder, chosen.reload)
  print(json.dumps(report.as_dict()) if chosen.json else report)
  return int(not report.equal)


def _table(chosen: argparse.Namespace) -> int:
  rows = importlib.import_module(f"reshard.check.table_{chosen.engine}")
  cards = pathlib.Path(reshard.__file__).parent / "cards" / chosen.engine
  names = chosen.classes or sorted(path.stem for path in cards.glob("*.json"))
  found = []
  for row in table.rows(names, chosen.formats.split(","), rows.row):
    found.append(row)
    print(table.line_of(row), flush=True)
  text = table.page(rows.ENGINE, found)
  if chosen.out:
    chosen.out.write_text(text, encoding="utf-8")
  print(table.summary(found))
  return int(any(row.verdict in (table.WRONG, table.DIFFERS) for row in found))


if __name__ == "__main__":
  sys.exit(main())
