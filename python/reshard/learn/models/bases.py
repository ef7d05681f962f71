# SPDX-License-Identifier: Apache-2.0
"""The small models of a class that a card is learned from, where those that transformers makes by default do not do."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import transformers

from reshard.learn.models import tiny


@dataclasses.dataclass(frozen=True)
class Base:
  """How all small models of a class are.

  said      for `proof`; "": as by default
  flag      of the config that is flipped in all of them
  kv_heads  whether they have as many KV heads as heads
  ranks     so many ranks have KV heads of their own; 0: some do not
  kernel    of their convolutions over time; 0: another one in each
  vocab     their sizes of the vocabulary are multiples of this
  newer     whether they have the decoder of newer published models of their type
  """

  said: str = ""
  flag: str = ""
  kv_heads: bool = False
  ranks: int = 0
  kernel: int = 0
  vocab: int = 1
  newer: bool = False

  def fits(self, name: str) -> bool:
    """Whether the class has small models of this kind."""
    return (not self.flag or bool(self.flags(name))) and (not self.newer or self.decoder(name) is not None)

  def decoder(self, name: str) -> Mapping[str, Any] | None:
    """Keys of the decoder's config; None: it is that of the class by default."""
    return tiny.DECODERS.get(getattr(transformers, name).config_class.model_type) if self.newer else None

  def flags(self, name: str) -> tuple[str, ...]:
    return tiny.flags_of(name, (self.flag,)) if self.flag else ()

  def sizes(self, of: tiny.Sizes) -> tiny.Sizes:
    kv_heads = of.heads if self.kv_heads else of.kv_heads
    if self.ranks:
      kv_heads = next(n for n in range(of.heads // 2, of.heads + 1) if of.heads % n == n % self.ranks == 0)
    vocab = -(-of.vocab // self.vocab) * self.vocab
    return dataclasses.replace(of, kv_heads=kv_heads, kernel=self.kernel or of.kernel, vocab=vocab)

  def begins(self, proof: str) -> bool:
    """Whether this is the proof of a card that was learned from these models."""
    return proof.startswith(f"{self.said}: ") if self.said else not proof.partition(";")[0].count(":")


#: Megatron-Bridge knows some classes only so.
MEGATRON = (
  Base(), Base("embeddings tied", flag="tie_word_embeddings"), Base("KV heads for each of four ranks", ranks=4),
  Base("a KV head for each head", kv_heads=True),
  Base("the decoder of newer models", newer=True), Base("convolutions over 4 steps", kernel=4),
  Base("vocabularies that need no padding", vocab=8),
)  # fmt: skip
