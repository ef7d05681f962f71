# SPDX-License-Identifier: Apache-2.0
"""One rank of a trainer of a checkpoint with a LoRA adapter, named as PEFT's modules name them.

The line "update BASE ADAPTER" makes the weights and the factors those of two folders.
"""

from pathlib import Path

import adapters
import driver


def values(base, adapter):
  """By the names that a layout has: factors with the adapter's name in them."""
  factors = adapters.read(Path(adapter))
  named = {k.removeprefix("base_model.model.").replace(".weight", ".policy.weight"): v for k, v in factors.items()}
  return adapters.read(Path(base)) | named


def main():
  args = driver.options()
  held = driver.Cut(values(args.model, args.more.pop("adapter")), args.rank, args.size)
  driver.serve(args, held.layout, held.tensors, lambda base, adapter: held.load(values(base, adapter)))


if __name__ == "__main__":
  main()
