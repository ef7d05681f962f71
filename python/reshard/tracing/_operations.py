# SPDX-License-Identifier: Apache-2.0
"""What torch's operations do to values, as far as tracing must know.

The lists name the operations that only move values. Every other operation counts as one that
computes: what is not known is refused, never overlooked. Names are those of torch's dispatcher,
without "aten::" and overload.
"""

from collections.abc import Iterator
from typing import Any

import torch

# The result shares its input's memory, and torch says which elements it shows.
VIEWS = frozenset(
  """
  alias as_strided chunk detach detach_ diagonal expand lift_fresh narrow permute select slice split
  split_with_sizes squeeze squeeze_ t t_ transpose transpose_ unbind unfold unsafe_chunk
  unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ view _reshape_alias _unsafe_view
  """.split()
)
# The result is a copy, perhaps in another dtype.
COPIES = frozenset("clone _to_copy lift_fresh_copy _pin_memory".split())
# The result has elements of the inputs in other places, and perhaps zeros. The numbers are those of
# the arguments that say where, which must not depend on weights.
MOVES: dict[str, tuple[int, ...]] = {
  **dict.fromkeys(
    """
    as_strided_copy as_strided_scatter block_diag cat channel_shuffle constant_pad_nd detach_copy
    diag_embed diagonal_copy diagonal_scatter expand_copy flip permute_copy pixel_shuffle
    pixel_unshuffle repeat roll rot90 select_copy select_scatter slice_copy slice_scatter
    split_with_sizes_copy squeeze_copy stack t_copy transpose_copy tril tril_ triu triu_
    unbind_copy unfold_copy unsqueeze_copy view_copy
    """.split(),
    (),
  ),
  **dict.fromkeys(
    """
    _unsafe_index _unsafe_masked_index index index_put index_put_ masked_fill masked_fill_
    masked_scatter masked_scatter_ masked_select take
    """.split(),
    (1,),
  ),
  **dict.fromkeys(
    """
    gather index_copy index_copy_ index_fill index_fill_ index_select scatter scatter_
    """.split(),
    (2,),
  ),
  "where": (0,),
}
# The argument of a move that is written where no input goes.
FILLERS = {
  "constant_pad_nd": 2, "index_fill": 3, "masked_fill": 2, "scatter": 3, "index_put": 2,
  "index_copy": 3, "masked_scatter": 2, "slice_scatter": 1, "select_scatter": 1,
  "diagonal_scatter": 1, "as_strided_scatter": 1,
}  # fmt: skip
NEW_ZEROS = frozenset("zeros zeros_like new_zeros".split())
NEW_EMPTY = frozenset("empty empty_like new_empty empty_strided new_empty_strided".split())
NEW_FILLED = frozenset("ones ones_like new_ones full full_like new_full".split())
NEW_RANDOM = frozenset("rand rand_like randn randn_like".split())
NEW = NEW_ZEROS | NEW_EMPTY | NEW_FILLED | NEW_RANDOM
# Answers about a tensor that do not depend on its values.
QUESTIONS = frozenset(
  """
  dim is_complex is_contiguous is_floating_point is_inference is_pinned is_same_size is_set_to
  is_signed numel result_type size storage_offset stride sym_is_contiguous sym_numel sym_size
  sym_storage_offset sym_stride
  """.split()
)
# Methods of tensors that hand values to others than torch.
ESCAPES = frozenset(
  "numpy tolist __array__ __dlpack__ data_ptr __reduce_ex__ __cuda_array_interface__".split()
)


def name_of(func: Any) -> str:
  return str(func._schema.name).removeprefix("aten::")


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
  """All tensors in arguments or results, however they are nested."""
  if isinstance(values, torch.Tensor):
    yield values
  elif isinstance(values, list | tuple):
    for value in values:
      yield from tensors_in(value)
  elif isinstance(values, dict):
    yield from tensors_in(list(values.values()))


def bound(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
  """All arguments in the order of the operation's schema, with its defaults."""
  values = list(args)
  for argument in func._schema.arguments[len(args) :]:
    values.append(kwargs.get(argument.name, argument.default_value))
  return values


def written_by(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
  """The tensors whose memory an operation writes."""
  found: list[torch.Tensor] = []
  for argument, value in zip(func._schema.arguments, bound(func, args, kwargs), strict=False):
    if argument.alias_info is not None and argument.alias_info.is_write:
      found += tensors_in(value)
  return found


def answers(func: Any) -> bool:
  """True if an operation gives something else than tensors: a number, say."""
  return any(str(r.type) not in ("Tensor", "List[Tensor]") for r in func._schema.returns)


def is_random(func: Any) -> bool:
  return torch.Tag.nondeterministic_seeded in func.tags


def depends_on_values(func: Any) -> bool:
  """True if the result, or its shape, can only be known with values."""
  return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def is_move(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
  """True for a call that only moves elements; not for one that adds them up where they meet."""
  name = name_of(func)
  if name not in MOVES or "reduce" in func._overloadname or kwargs.get("reduce") is not None:
    return False
  values = bound(func, args, kwargs)
  named = {a.name: v for a, v in zip(func._schema.arguments, values, strict=False)}
  return not named.get("accumulate", False)


def same_without_out(func: Any) -> Any:
  """The operation of which this one is the form with `out=`; None if it is not one."""
  return getattr(torch.ops.aten, name_of(func)) if "out" in func._overloadname else None


def is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def shift_of(func: Any, args: Any, kwargs: dict[str, Any]) -> str:
  """ "add 1" for x + 1 in any spelling; "" for what is not a sum with a number."""
  name = name_of(func).rstrip("_")
  values = bound(func, args, kwargs)
  if name not in ("add", "sub") or len(values) < 2 or not is_number(values[1]):
    return ""
  alpha = values[2] if len(values) > 2 else kwargs.get("alpha", 1)
  return f"{name} {values[1] * alpha:g}" if is_number(alpha) else ""
