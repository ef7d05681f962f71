# SPDX-License-Identifier: Apache-2.0
"""Protects: a stream of buckets gives every worker the trainers' tensors, whole, in order and as its own,
whatever their shapes and dtypes, and when they change from one update to the next."""

import asyncio

import pytest
import torch
from ranks import errors_in_threads, in_threads

import reshard
from reshard.engines.link import Link
from reshard.engines.stream import Piece, Stream, even_pieces
from reshard.live._parts import Held

TRAINERS, SIZE = 2, 4
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int64, torch.int8,
          torch.uint8, torch.bool]  # fmt: skip


def tensors(seed, width=5):
  generator = torch.Generator().manual_seed(seed)

  def made(dtype, *shape):
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)

  found = [(f"dtypes.{str(dtype)[6:]}", made(dtype, 3, width)) for dtype in DTYPES]
  found += [("scalar", made(torch.float32)), ("one", made(torch.int64, 1)), ("none", torch.empty(0, 4))]
  found += [("large", made(torch.float32, 90, width)), ("four", made(torch.bfloat16, 2, 3, 1, width))]
  return found + [("column", made(torch.float32, 7, 7).T)]  # not contiguous


def streams(body, **options):
  def run(group):
    stream = Stream(Link(group, 30.0), senders=TRAINERS, **{"bucket": 200} | options)
    try:
      return asyncio.run(body(stream))
    finally:
      stream.close()

  return run


async def moved(stream, given, step=None):
  """An update: what a worker gets, or how many bytes a trainer sent."""
  if stream.link.rank < TRAINERS:
    return await stream.send(even_pieces(given, stream.link.rank, TRAINERS), step)
  return [pair async for batch in stream.receive(step) for pair in batch]


def equal(a, b):
  mine, its = (t.contiguous().view(-1).view(torch.uint8) for t in (a, b))
  return a.dtype == b.dtype and a.shape == b.shape and torch.equal(mine, its)


@pytest.mark.parametrize("keep", [False, True])
def test_whole_tensors_arrive_in_order_when_values_shapes_and_names_change(keep):
  updates = [tensors(1), tensors(2), tensors(3, width=6), tensors(4)[3:], [], tensors(5)]

  async def body(stream):
    return [await moved(stream, given) for given in updates], stream.version

  for rank, (results, version) in enumerate(in_threads(SIZE, streams(body, keep=keep))):
    assert version == len(updates)
    if rank < TRAINERS:
      continue
    for given, got in zip(updates, results, strict=True):  # those of earlier updates have stayed
      assert [name for name, _ in got] == [name for name, _ in given]
      for (name, mine), (_, its) in zip(given, got, strict=True):
        assert equal(mine, its), name


def test_parts_that_trainers_hold_in_any_shape_make_whole_tensors():
  whole = torch.arange(48).view(6, 8).to(torch.float32)
  columns = [((0, 3), (5, 6)), ((3, 5), (6, 8))]  # of trainer 0 and 1

  async def body(stream):
    rank = stream.link.rank
    if rank >= TRAINERS:
      return [pair async for batch in stream.receive(7) for pair in batch]
    local = torch.cat([whole[:, b:e] for b, e in columns[rank]], 1)
    held = Held("w", "w", "F32", (6, 8), (((0, 6),), columns[rank]))
    return await stream.send([Piece(held, local, (6, 8))], 7)

  for got in in_threads(SIZE, streams(body))[TRAINERS:]:
    ((name, tensor),) = got
    assert name == "w" and torch.equal(tensor, whole)


def test_trainers_that_disagree_are_told_how():
  given = tensors(1)

  async def fewer(stream):
    return await moved(stream, given[: -3 if stream.link.rank == 1 else None])

  async def smaller(stream):
    pieces = even_pieces(given, 0, 1)
    if stream.link.rank == 1:  # too few elements
      pieces = (Piece(piece.held, piece.local[:-1], piece.shape) for piece in pieces)
    return await (stream.send(pieces) if stream.link.rank < TRAINERS else moved(stream, []))

  for body, said in ((fewer, "fewer tensors|differently"), (smaller, "elements, but this part has shape")):
    for error in errors_in_threads(SIZE, streams(body)):
      with pytest.raises(reshard.Error, match=said):
        raise error


def test_sizes_are_checked():
  link = Link(reshard.local(1)[0], 1.0)
  with pytest.raises(reshard.InvalidArgumentError, match="bucket of 0 bytes"):
    Stream(link, senders=1, bucket=0)
  with pytest.raises(reshard.InvalidArgumentError, match="1 trainers in a group of 1"):
    Stream(link, senders=1, bucket=1)
  link.close()
