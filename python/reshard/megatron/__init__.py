# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's refit by reshard (docs/megatron.md): a copy service for Megatron's own calls, or the calls.

`CopyService` carries the copies that Megatron plans. `swap_model_weights` and the functions beside it
have Megatron's names and arguments, and plan and move by themselves.
"""

from reshard.megatron._refit import (
  clear_all_caches,
  clear_plan_cache,
  clear_service_cache,
  get_or_create_service,
  prepare_swap_model_weights,
  reshard_model_weights,
  swap_model_weights,
)
from reshard.megatron._service import CopyService

__all__ = [
  "CopyService",
  "clear_all_caches",
  "clear_plan_cache",
  "clear_service_cache",
  "get_or_create_service",
  "prepare_swap_model_weights",
  "reshard_model_weights",
  "swap_model_weights",
]
