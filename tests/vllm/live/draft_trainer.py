# SPDX-License-Identifier: Apache-2.0
"""One rank of a trainer of a model, in the layout that it is told, and of its draft model.

The line "update MODEL DRAFT" makes the weights those of two folders.
"""

from pathlib import Path

import adapters
import driver
import reshard
import reshard.hf
import reshard.vllm


def main():
  args = driver.options()
  layout = reshard.layout(args.text, reshard.open_model(args.model))
  tensors = reshard.hf.load(args.model, layout, args.rank)
  draft = driver.Cut(adapters.read(Path(args.more.pop("draft"))), args.rank, args.size)

  def load(model, path):
    reshard.hf.load(model, layout, args.rank, tensors)
    draft.load(adapters.read(Path(path)))

  driver.serve(args, layout, tensors, load, draft=reshard.vllm.Draft(draft.layout, draft.tensors))


if __name__ == "__main__":
  main()
