# SPDX-License-Identifier: Apache-2.0
# What stubgen of nanobind cannot know.
reshard._core.__suffix__:
    __version__: str

# Its class has a method named dict.
reshard._core.SessionReport.rows:
    \from typing import Dict
    def rows(self) -> list[Dict[str, int | float | str]]:
        \doc

