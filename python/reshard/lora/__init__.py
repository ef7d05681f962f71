# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: as PEFT folders that engines load, or merged into the weights on the way. docs/lora.md.

Needs torch, and not PEFT.
"""

from reshard.lora._config import scale_of
from reshard.lora._folder import Adapter
from reshard.lora._merge import Merge
from reshard.lora._modules import Adapted, of_modules
from reshard.lora._names import NAMES, Part, part_of

__all__ = ["NAMES", "Adapted", "Adapter", "Merge", "Part", "of_modules", "part_of", "scale_of"]
