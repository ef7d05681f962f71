# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other: JSON, compressed. Nothing is executed to read it."""

from __future__ import annotations

import json
import zlib
from typing import Any

#: The most bytes that may be unpacked to.
MAX_BYTES = 1 << 30


def pack(value: Any) -> bytes:
  """JSON, compressed."""
  return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), level=1)


def unpack(data: bytes) -> Any:
  """What `pack()` was given. Errors: ValueError."""
  stream = zlib.decompressobj()
  text = stream.decompress(data, MAX_BYTES)
  if stream.unconsumed_tail:
    raise ValueError(f"a manifest of more than {MAX_BYTES} bytes")
  return json.loads(text)
