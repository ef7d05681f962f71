# SPDX-License-Identifier: Apache-2.0
"""Layouts of what live ranks hold: torch DTensors, and modules of Megatron-Core.

`of_dtensors`, `of_modules` and `module_tensors` are also names of `reshard`. Each rank describes its
own tensors as parts of full tensors; where the ranks have to be asked, one all-gather of the group
carries the descriptions. Needs torch; `import reshard` does not import this package.
"""

from reshard.live._dtensors import of_dtensors
from reshard.live._megatron import of_modules
from reshard.live._modules import module_tensors

__all__ = ["module_tensors", "of_dtensors", "of_modules"]
