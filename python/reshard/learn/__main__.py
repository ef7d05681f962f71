# SPDX-License-Identifier: Apache-2.0
"""Learns or checks the layout cards of a framework, in a Python that has it.

    python -m reshard.learn vllm FOLDER [CLASS ...]          writes FOLDER/CLASS.json for each class
    python -m reshard.learn vllm FOLDER --check [CLASS ...]  proves those that are there anew
    python -m reshard.learn vllm FOLDER --complete [CLASS ...]  says in them which tensors belong together, without vLLM

Prints a line for each class: how its card was proved, or why it has none. Ends with 1 if a card that
was to be checked is wrong.
"""

import argparse
import dataclasses
import importlib
import json
import logging
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import transformers

from reshard.learn import NoCard, card_text, extended, learn, prove
from reshard.learn.complete import complete_of
from reshard.learn.learner import also_for, without_layers
from reshard.learn.missing import is_read, prove_complete
from reshard.learn.models import tiny
from reshard.learn.models.bases import Base
from reshard.learn.models.published import prefixes_of, publish, with_both_names
from reshard.learn.models.stored import STORED, Stored, store
from reshard.learn.models.variants import variants_of


@dataclasses.dataclass(frozen=True)
class Round:
  """Small models that differ from those of the first round.

  said    how, for `proof`
  flags   of the config that are flipped
  stored  the form of their checkpoints; None: that of published ones
  towers  the prefixes of towers in published names, which these checkpoints do not have; None: they have them
  form    the first flag tells other forms of the same tensors apart
  base    what they have in common with those of the first round
  """

  said: str
  flags: Sequence[str] = ()
  stored: Stored | None = None
  towers: Mapping[str, str] | None = None
  form: bool = False
  base: Base = Base()

  def checkpoints(self, root: pathlib.Path, name: str) -> list[pathlib.Path]:
    return checkpoints(root, name, self.flags, self.stored, self.towers is None, self.base)

  def added_to(
    self, teacher: Any, card: dict[str, Any], models: Sequence[pathlib.Path], others: Sequence[pathlib.Path]
  ) -> dict[str, Any]:
    """The card, if it can also say what is held of these models. Raises NoCard."""
    if self.towers is not None:
      return also_for(teacher, card, with_both_names(card["rules"], self.towers), models, others, self.said)
    if self.stored is not None and self.stored.omits:
      return also_for(teacher, card, without_layers(card), models, others, self.said)
    return extended(teacher, card, models, others, self.said, self.flags[0] if self.form else None)


def _model_type(name: str) -> str:
  return str(getattr(transformers, name).config_class.model_type)


def _alone(teacher: Any, name: str) -> Stored | None:
  """The form of checkpoints that the framework loads, if it is not that of transformers."""
  return next((form for form in STORED.get(_model_type(name), ()) if teacher.FRAMEWORK in form.alone), None)


def _rounds(teacher: Any, name: str, base: Base) -> list[Round]:
  alone, each = _alone(teacher, name), (flag for flag in getattr(teacher, "FLAGS", ()) if flag != base.flag)
  of = [flags for flags in (tiny.flags_of(name), *(tiny.flags_of(name, (flag,)) for flag in each)) if flags]
  flipped = [Round(_flipped(flags), flags, alone, base=base) for flags in of]
  forms_of = [flags for flags in getattr(teacher, "FORMS", ()) if tiny.flags_of(name, flags) == flags]
  flipped += [Round(_flipped(flags), flags, alone, form=True, base=base) for flags in forms_of]
  known = [form for form in STORED.get(_model_type(name), ()) if form is not alone]
  forms = [form for form in known if not form.only or teacher.FRAMEWORK in form.only]
  of_forms = [Round(form.said, stored=form, base=base) for form in forms]
  with torch.device("meta"):
    towers = prefixes_of(getattr(transformers, name)._from_config(tiny.config_of(name, tiny.SEEN[0])))
  if towers and teacher.FRAMEWORK == "transformers":  # engines do not load these
    of_forms.append(Round("towers named as transformers writes them", towers=towers))
  return [*flipped, *of_forms]


def _flipped(flags: Sequence[str]) -> str:
  return " and ".join(dict.fromkeys(f.rpartition(".")[2] + " flipped" for f in flags))


def main() -> int:
  parser = argparse.ArgumentParser(prog="python -m reshard.learn")
  parser.add_argument("framework", choices=["megatron", "sglang", "transformers", "vllm"])
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("classes", nargs="*", metavar="CLASS")
  mode = parser.add_mutually_exclusive_group()
  mode.add_argument("--check", action="store_true")
  mode.add_argument("--complete", action="store_true")
  chosen = parser.parse_intermixed_args()
  os.environ["RESHARD_CACHE"] = "off"
  transformers.logging.set_verbosity_error()
  logging.disable(logging.WARNING)
  torch.set_num_threads(1)  # small tensors: threads would wait for each other
  if chosen.complete:
    return _complete(chosen.folder, chosen.classes)
  teacher = importlib.import_module(f"reshard.learn.{chosen.framework}")
  known = teacher.classes()
  there = [p.stem for p in sorted(chosen.folder.glob("*.json"))]
  missing = f"no class of {chosen.framework} with a language model's head"
  wrong, of = 0, chosen.classes or (there if chosen.check else sorted(known))
  for name in of:
    begin = time.monotonic()
    said, good = _apart(_one, teacher, name, chosen.folder, chosen.check) if name in known else (missing, False)
    wrong += not good
    print(f"{name}: {said} ({time.monotonic() - begin:.0f} s)", flush=True)
  print(f"{len(of) - wrong} of {len(of)}")
  return int(chosen.check and wrong > 0)


def _complete(folder: pathlib.Path, classes: Sequence[str]) -> int:
  """Adds the key `complete` to cards that are there; 1 if it could not be proved for one."""
  wrong = 0
  for name in classes or [p.stem for p in sorted(folder.glob("*.json"))]:
    said, good = _apart(_complete_one, folder / f"{name}.json")
    wrong += not good
    print(f"{name}: {said}", flush=True)
  return int(wrong > 0)


def _complete_one(path: pathlib.Path) -> tuple[str, bool]:
  card = json.loads(path.read_text(encoding="utf-8"))
  if "base" in card:
    return "written by hand", True
  try:
    made, said = completed(card, path.stem)
  except Exception as error:
    return f"not known: {type(error).__name__}: {' '.join(str(error).split())[:200]}", False
  path.write_text(card_text(made), encoding="utf-8")
  return said, True


def completed(card: Mapping[str, Any], name: str) -> tuple[dict[str, Any], str]:
  """A card with the key `complete`, proved, and how many kinds of missing tensors it notices.

  Raises Incomplete, or what transformers raises for a class that it cannot build.
  """
  variants = variants_of(name)
  made = {key: value for key, value in card.items() if key != "complete"}
  if is_read(variants[0]):
    return made, "none: the config of the class is read, and says which tensors there are"
  if entries := complete_of(made, variants):
    made["complete"] = entries
  return made, prove_complete(made, variants)


def _apart(run: Callable[..., tuple[str, bool]], *arguments: Any) -> tuple[str, bool]:
  """What `run` returns, in a process of its own: a framework keeps what it registered for a class."""
  receive, send = multiprocessing.Pipe(duplex=False)
  process = multiprocessing.get_context("fork").Process(target=lambda: send.send(run(*arguments)))
  process.start()
  send.close()
  try:
    return receive.recv()  # type: ignore[no-any-return]
  except EOFError:
    process.join()
    return f"its process ended with {process.exitcode}", False
  finally:
    process.join()


def _one(teacher: Any, name: str, folder: pathlib.Path, check: bool) -> tuple[str, bool]:
  path = folder / f"{name}.json"
  if path.exists() and "base" in json.loads(path.read_text(encoding="utf-8")):
    return "written by hand", True
  reason = ""
  for base in (base for base in getattr(teacher, "BASES", (Base(),)) if base.fits(name)):
    if check and not base.begins(json.loads(path.read_text(encoding="utf-8"))["card"]["proof"]):
      continue
    with tempfile.TemporaryDirectory() as work:
      said, good = _of_base(teacher, name, path, check, base, pathlib.Path(work))
    if good:
      return said, good
    if said not in reason:
      reason += f"; {base.said}: {said}" if reason else said
  return reason, False


def _of_base(
  teacher: Any, name: str, path: pathlib.Path, check: bool, base: Base, root: pathlib.Path
) -> tuple[str, bool]:
  try:
    models = checkpoints(root / "as-is", name, stored=_alone(teacher, name), base=base)
  except Exception as error:
    return f"no small model: {type(error).__name__}: {str(error).splitlines()[0][:200]}", False
  rounds = _rounds(teacher, name, base)
  try:
    if check:
      return _check(teacher, json.loads(path.read_text(encoding="utf-8")), models, rounds, root, name), True
    made = learn(teacher, models[:2], models[2])
  except NoCard as error:
    return f"no card: {error}", False
  without = ""
  for i, one in enumerate(rounds):
    try:
      made = one.added_to(teacher, made, models, one.checkpoints(root / f"other{i}", name))
    except Exception as error:  # of the class too: not every combination of flags is one
      without += f"; not with {one.said}: {' '.join(str(error).split())[:160]}"
  if base.said:
    made["card"]["proof"] = f"{base.said}: {made['card']['proof']}"
  try:
    made, notices = completed(made, name)
    without += f"; notices that one is missing of {notices}"
  except Exception as error:
    without += f"; does not know missing tensors: {' '.join(str(error).split())[:160]}"
  path.write_text(card_text(made), encoding="utf-8")
  return str(made["card"]["proof"]) + without, True


def _check(
  teacher: Any,
  card: dict[str, Any],
  models: Sequence[pathlib.Path],
  rounds: Sequence[Round],
  root: pathlib.Path,
  name: str,
) -> str:
  proved = prove(teacher, card, models[:2], models[2])
  for i, one in enumerate(rounds):
    if f" {one.said}: " in card["card"]["proof"]:
      others = one.checkpoints(root / f"other{i}", name)
      proved += [f"{row} with {one.said}" for row in prove(teacher, card, others[:2], others[2])]
  return "; ".join(proved)


def checkpoints(
  root: pathlib.Path,
  architecture: str,
  flipped: Sequence[str] = (),
  stored: Stored | None = None,
  published: bool = True,
  base: Base = Base(),
) -> list[pathlib.Path]:
  """The two small checkpoints that learning sees, and the one that it does not."""
  first = dataclasses.replace(tiny.SEEN[0], **(stored.sizes if stored else {}))
  every = enumerate(map(base.sizes, (first, *tiny.SEEN[1:], tiny.UNSEEN)))
  flags, decoder = (*base.flags(architecture), *flipped), base.decoder(architecture)
  return [checkpoint(root / str(i), architecture, sizes, flags, stored, published, decoder) for i, sizes in every]


def checkpoint(
  folder: pathlib.Path,
  architecture: str,
  sizes: tiny.Sizes,
  flipped: Sequence[str] = (),
  stored: Stored | None = None,
  published: bool = True,
  decoder: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """A small checkpoint of a class, as transformers writes it, by the names of published ones; or in another form."""
  config = tiny.config_of(architecture, sizes, flipped, decoder)
  if stored is not None and stored.last is not None:
    text = config.get_text_config()
    text.layer_types = [*text.layer_types[:-1], stored.last]
  model = getattr(transformers, architecture)._from_config(config, dtype=torch.bfloat16)
  model.save_pretrained(folder)
  if published:
    publish(model, folder)
  if stored is not None:
    store(folder, stored)
  return folder


if __name__ == "__main__":
  sys.exit(main())
