# SPDX-License-Identifier: Apache-2.0
"""Finds the expression of a config's keys that gives the numbers that were seen."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from reshard.learn.fitting.evidence import Unfit

_MOST = 1 << 40
# Keys that say nothing of sizes, whatever their values.
_NO_SIZES = ("token", "position", "version", "seed", "layer", "window", "max_", "min_", "eps", "length", "bias", "use_",
             "rope", "freq", "interval", "skip", "pp_", "topk", "_per_tok", "depth", "tie_", "dtype")  # fmt: skip
_LIKELY = ("num_key_value_heads", "head_dim", "num_attention_heads", "hidden_size", "intermediate_size")

Values = tuple[int, ...]


class Terms:
  """Expressions over the keys of some configs.

  numbers   of each config: its whole numbers by name
  defaults  what a config of the class has for keys that a file may leave out, of those that follow no
            other key
  aliases   other names of keys: files may have either
  """

  def __init__(
    self, numbers: Sequence[Mapping[str, int]], defaults: Mapping[str, int], aliases: Mapping[str, str] | None = None
  ) -> None:
    self._defaults = defaults
    self._aliases = aliases or {}
    self._keys: dict[str, Values] = {}
    for key in sorted(set.intersection(*map(set, numbers)), key=_rank):
      values = tuple(of[key] for of in numbers)
      if all(1 < v < _MOST for v in values) and not any(word in key for word in _NO_SIZES):
        self._keys[key] = values

  def text_of(self, key: str) -> str:
    """The key as an expression has it: with what holds where a config leaves it out."""
    alias = f"{self._aliases[key]} ?? " if key in self._aliases else ""
    if default := self._defaults.get(key, 0):
      return f"({alias}{key} ?? {default})"
    prefix, _, last = key.rpartition(".")
    prefix += "." if prefix else ""
    heads, hidden = f"{prefix}num_attention_heads", f"{prefix}hidden_size"
    if last in ("num_key_value_heads", "num_kv_heads") and heads in self._keys:
      return f"({key} ?? {heads})"
    if last == "head_dim" and {hidden, heads} <= self._keys.keys():
      return f"({key} ?? {hidden} / {heads})"
    return key

  def names(self) -> Iterator[str]:
    """The keys that may say sizes: likelier ones first."""
    yield from self._keys

  def counts(self) -> Iterator[tuple[str, Values]]:
    """Keys that may count units, such as heads: likelier ones first."""
    for key, values in self._keys.items():
      if len(set(values)) > 1:
        yield self.text_of(key), values

  def of(self, wanted: Sequence[int], extents: Sequence[int]) -> str:
    """The simplest expression with these values, one for each config. `extents`: of the dimension.

    Raises Unfit, also for a number that is the same in all configs: they do not tell what gives it.
    """
    if not any(wanted):
      return "0"
    if len(set(wanted)) == 1:
      raise Unfit(f"{wanted[0]} is the same in all models, which do not tell what gives it")
    for text, values in self._candidates(tuple(extents)):
      if values == tuple(wanted):
        return text
    raise Unfit(f"no expression of the config gives {', '.join(map(str, wanted))}")

  def _candidates(self, extents: Values) -> Iterator[tuple[str, Values]]:
    """Simpler ones first. A value that is no whole number is -1."""
    keys = [(self.text_of(key), values) for key, values in self._keys.items()]
    pairs = list(itertools.combinations_with_replacement(keys, 2))
    products = [(f"{a} * {b}", _each(lambda x, y: x * y, u, v)) for (a, u), (b, v) in pairs]
    yield "extent", extents
    for n in (2, 3, 4, 5, 6, 8):
      yield f"extent / {n}", _each(lambda e, n=n: _whole(e, n), extents)
    for k, n in ((2, 3), (3, 4), (5, 6)):
      yield f"{k} * extent / {n}", _each(lambda e, k=k, n=n: _whole(k * e, n), extents)
    yield from keys
    yield from self._of_head_size()
    for text, values in keys:
      yield f"2 * {text}", _each(lambda v: 2 * v, values)
    yield from self._of_head_rows()
    yield from products
    for text, values in products:
      yield f"2 * {text}", _each(lambda v: 2 * v, values)
    for text, values in keys:
      yield f"3 * {text}", _each(lambda v: 3 * v, values)
      yield f"extent / {text}", _each(_whole, extents, values)
    for (a, u), (b, v) in itertools.permutations(keys, 2):
      yield f"{a} / {b}", _each(_whole, u, v)
      yield f"{a} + {b}", _each(lambda x, y: x + y, u, v)
    yield from self._of_three(keys)

  def _of_head_size(self) -> Iterator[tuple[str, Values]]:
    """The size of a head that no key gives."""
    for key, hidden in self._keys.items():
      for name, count in (("hidden_size", "num_attention_heads"), ("hidden_size", "n_head"), ("n_embd", "n_head")):
        prefix, _, last = key.rpartition(name)
        heads = f"{prefix}{count}"
        if not last and key == prefix + name and heads in self._keys:
          yield f"{self.text_of(key)} / {self.text_of(heads)}", _each(_whole, hidden, self._keys[heads])

  def _of_head_rows(self) -> Iterator[tuple[str, Values]]:
    """The rows of KV heads whose size no key gives."""
    for key, hidden in self._keys.items():
      prefix, _, last = key.rpartition("hidden_size")
      heads = f"{prefix}num_attention_heads"
      if last or heads not in self._keys:
        continue
      size = _each(_whole, hidden, self._keys[heads])
      for kv in (f"{prefix}num_key_value_heads", f"{prefix}num_kv_heads"):
        if kv in self._keys:
          text = f"{self.text_of(key)} / {self.text_of(heads)} * {self.text_of(kv)}"
          yield text, _each(lambda n, q: n * q, self._keys[kv], size)

  @staticmethod
  def _of_three(keys: Sequence[tuple[str, Values]]) -> Iterator[tuple[str, Values]]:
    heads = [(t, v) for t, v in keys if "head" in t or "group" in t or "kv" in t]
    for (a, u), (b, v), (c, w) in itertools.product(heads, heads, keys):
      yield f"({a} + 2 * {b}) * {c}", _each(lambda x, y, z: (x + 2 * y) * z, u, v, w)
      yield f"{a} * ({b} + {c})", _each(lambda x, y, z: x * (y + z), u, v, w)
      yield f"{c} / {b} * {a}", _each(lambda q, x: q * x, _each(_whole, w, v), u)
      quotients = _each(_whole, u, v)
      yield f"{a} / {b} * {c}", _each(lambda q, z: q * z, quotients, w)
      yield f"({a} / {b} + 2) * {c}", _each(lambda q, z: (q + 2) * z if q > 0 else -1, quotients, w)


def _each(of: Callable[..., int], *values: Values) -> Values:
  return tuple(of(*some) for some in zip(*values, strict=True))


def _whole(a: int, b: int) -> int:
  return a // b if b and a % b == 0 else -1


def _rank(key: str) -> tuple[int, int, str]:
  """Likely keys first: those of heads, then those of few components."""
  last = key.rpartition(".")[2]
  if last in _LIKELY:
    return key.count("."), _LIKELY.index(last), key
  return key.count("."), len(_LIKELY) + (0 if "head" in last or "group" in last else 1), key
