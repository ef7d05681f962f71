# SPDX-License-Identifier: Apache-2.0
"""Fleets: a trainer and engines that come, go and die while the others refit.

Every process of a trainer and of an engine makes a `Fleet`. A process of its own, or the trainer's
rank 0, serves them (`serve`, or `python -m reshard.fleet`). docs/elastic.md says what is guaranteed.
"""

from reshard.fleet.member import Fleet, FleetReport
from reshard.fleet.server import Server, serve

__all__ = ["Fleet", "FleetReport", "Server", "serve"]
