# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's refit by reshard (docs/megatron.md)."""

from reshard.megatron._service import CopyService

__all__ = ["CopyService"]
