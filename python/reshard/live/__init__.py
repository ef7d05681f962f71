# SPDX-License-Identifier: Apache-2.0
"""Layouts of what live ranks hold: torch DTensors, and modules of Megatron-Core.

`of_dtensors` and `of_modules` are reshard.of_dtensors and reshard.of_modules. Each rank describes its
own tensors as parts of full tensors; where the ranks have to be asked, one all-gather of the group
carries the descriptions. Needs torch; `import reshard` does not import this package.
"""

from reshard.live._dtensors import of_dtensors

__all__ = ["of_dtensors"]
