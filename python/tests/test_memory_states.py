# SPDX-License-Identifier: Apache-2.0
"""Law: whatever happens to tensors between refits, a refit uses what it may, and refuses the rest whole.

Random walks over what programs do with memory (swap, alias, shrink, freeze, free, update) are compared
with a plain model. RESHARD_MEMORY_STEPS is how many steps; 100000 takes minutes.
"""

import gc
import os
import random

import numpy as np
import pytest
import torch

import reshard

STEPS = int(os.environ.get("RESHARD_MEMORY_STEPS", "1500"))
STEPS_OF_ONE = 60
SIZES = {"w": 16, "v": 5, "x": 9}
SHAPES = {**{name: (n,) for name, n in SIZES.items()}, "empty": (0, 3)}
LAYOUT = reshard.layout("hf", reshard.Model.from_tensors("m", {n: (s, "F32") for n, s in SHAPES.items()}))
SIDES = ("source", "target", "back")


def fresh(rng, size):
  """Memory of one of the kinds that there are, not always aligned to more than an element."""
  kind = rng.randrange(4)
  if kind == 0:
    return torch.full((size,), -1.0)
  if kind == 1:
    return torch.full((size + 3,), -1.0)[3:]
  if kind == 2:
    return np.full(size, -1, np.float32)
  return bytearray(np.full(size, -1, np.float32).tobytes())


def facts(tensor):
  """(address, bytes, may be written, may be used at all) of a tensor with elements."""
  if not isinstance(tensor, torch.Tensor):
    array = np.frombuffer(tensor, np.uint8)
    return array.ctypes.data, array.nbytes, array.flags.writeable, True
  size = tensor.numel() * 4
  held = tensor.untyped_storage().nbytes() - tensor.storage_offset() * 4
  return tensor.data_ptr(), size, True, held >= size and not tensor.is_neg()


def as_array(tensor):
  """Its values as bits, which need not be in the memory of a tensor that is broken."""
  return np.frombuffer(tensor.numpy() if isinstance(tensor, torch.Tensor) else tensor, np.uint32)


class Walk:
  """A session over one rank's memory, and what must come of each call."""

  def __init__(self, rng):
    self.rng = rng
    self.replan = rng.random() < 0.7
    self.doubled = rng.random() < 0.5
    self.tensors = {side: self.made() for side in SIDES}
    self.inner = {side: dict(of) for side, of in self.tensors.items()}  # the mappings that are held
    options = {"back_tensors": self.inner["back"], "buffering": "doubled"} if self.doubled else {}
    self.session = reshard.Session(
      reshard.local(1)[0],
      source=LAYOUT,
      target=LAYOUT,
      source_tensors=self.inner["source"],
      target_tensors=(lambda: self.inner["target"]) if rng.random() < 0.3 else self.inner["target"],
      replan=self.replan,
      verify=rng.choice(["never", "always"]),
      **options,
    )
    self.planned = self.addresses()
    self.version = 0
    self.outcomes = {True: 0, False: 0}

  def made(self):
    made = {name: fresh(self.rng, size) for name, size in SIZES.items()}
    return {**made, "empty": torch.zeros(0, 3)}

  def used(self):
    return SIDES if self.doubled else SIDES[:2]

  def addresses(self):
    return [facts(self.inner[side][name])[0] for side in self.used() for name in SIZES]

  def usable(self, inner):
    """The model: every pair of tensors is looked at."""
    seen = []
    for side in self.used():
      for name in SIZES:
        if name not in inner[side]:
          return False
        address, size, writable, whole = facts(inner[side][name])
        if not whole or (side != "source" and not writable):
          return False
        for other, begin, end in seen:
          if (side != "source" or other != "source") and address < end and begin < address + size:
            return False
        seen.append((side, address, address + size))
    return True

  def disturb(self, inner):
    """One thing that a program does with its tensors."""
    rng = self.rng
    side, name = rng.choice(self.used()), rng.choice(list(SIZES))
    tensor, here = inner[side].get(name), inner[side]
    other = inner[rng.choice(self.used())].get(rng.choice(list(SIZES)))
    what = rng.randrange(10)
    if what == 0 or tensor is None:
      here[name] = fresh(rng, SIZES[name])
    elif what == 1 and other is not None and facts(other)[1] == facts(tensor)[1]:
      here[name] = other
    elif what == 2 and isinstance(other, torch.Tensor) and facts(other)[3] and other.numel() > SIZES[name]:
      here[name] = other[1 : SIZES[name] + 1]
    elif what == 3 and isinstance(tensor, torch.Tensor):
      tensor.data = torch.full((SIZES[name],), -2.0)
    elif what == 4 and isinstance(tensor, torch.Tensor) and tensor.untyped_storage().resizable():
      tensor.untyped_storage().resize_(rng.choice([0, 4, 12, 4096]))
    elif what == 5 and isinstance(tensor, np.ndarray):
      tensor.flags.writeable = not tensor.flags.writeable
    elif what == 6:
      here[name] = np.zeros(SIZES[name], np.float32).tobytes()
    elif what == 7 and isinstance(tensor, torch.Tensor):
      here[name] = torch._neg_view(tensor)
    elif what == 8:
      del here[name]
    elif what == 9:
      both = torch.zeros(SIZES[name] + SIZES["w"])  # neighbours in one storage are fine
      here[name], inner["target"]["w"] = both[: SIZES[name]], both[SIZES[name] :]

  def mend(self):
    for side, made in ((side, self.made()) for side in SIDES):
      self.inner[side].update(made)

  def update(self):
    """A session takes other tensors, or keeps those that it has."""
    changed = {side: dict(of) for side, of in self.inner.items()}
    sides = [side for side in self.used() if self.rng.random() < 0.7]
    for side in sides:
      changed[side] = self.made() if self.rng.random() < 0.5 else dict(self.inner[side])
    for _ in range(self.rng.randrange(3)):
      held = {side: dict(of) for side, of in changed.items()}
      self.disturb(held)
      for side in sides:
        changed[side] = held[side]
    usable = self.usable(changed)
    given = {f"{side}_tensors": changed[side] for side in sides}
    try:
      self.session.update(**given)
      assert usable
      self.inner.update({side: changed[side] for side in sides})
    except reshard.Error:
      assert not usable

  def contents(self):
    return {
      (side, name): None if not facts(t)[3] else as_array(t).copy()
      for side, of in self.inner.items()
      for name, t in of.items()
      if name != "empty"
    }

  def fill(self):
    self.version += 1
    for k, (name, tensor) in enumerate(self.inner["source"].items()):
      address, _, writable, whole = facts(tensor) if name in SIZES else (0, 0, False, False)
      if address and writable and whole:
        np.asarray(as_writable(tensor))[:] = self.version * 10 + k

  def call(self, call, goes):
    """Runs a collective call that must succeed, or be refused and change nothing."""
    before, version = self.contents(), self.session.target_version()
    self.outcomes[goes] += 1
    if goes:
      return call()
    with pytest.raises(reshard.InvalidArgumentError):
      call()
    assert self.session.target_version() == version
    after = self.contents()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    return None

  def refit(self):
    self.fill()
    usable = self.usable(self.inner)
    moved = usable and self.addresses() != self.planned
    goes = usable and (self.replan or not moved)
    self.call(lambda: self.session.refit(self.version), goes)
    if goes:
      self.planned = self.addresses()
      target = self.inner["back" if self.session.target_version().buffer == 1 else "target"]
      for name in SIZES:
        assert np.array_equal(as_array(target[name]), as_array(self.inner["source"][name]))

  def verify(self):
    usable = self.usable(self.inner)
    goes = usable and self.addresses() == self.planned
    if not goes:
      self.call(self.session.verify, goes)
      return
    try:
      self.session.verify()
    except reshard.CorruptError:
      pass  # tensors at the same addresses, with other values

  def step(self):
    for _ in range(self.rng.choice([0, 0, 1, 1, 2])):
      self.disturb(self.inner)
    what = self.rng.randrange(12)
    if what == 0:
      self.update()
    elif what == 1:
      self.verify()
    elif what < 5:
      self.mend()
    elif what == 5:
      gc.collect(0)
    self.refit()


def as_writable(tensor):
  return tensor.numpy() if isinstance(tensor, torch.Tensor) else np.frombuffer(tensor, np.float32)


def test_sessions_use_what_a_plain_model_allows():
  outcomes = {True: 0, False: 0}
  for seed in range(1, STEPS // STEPS_OF_ONE + 1):
    walk = Walk(random.Random(seed))
    for step in range(STEPS_OF_ONE):
      try:
        walk.step()
      except BaseException as error:
        error.add_note(f"seed {seed}, step {step}")
        raise
    walk.session.close()
    for goes, times in walk.outcomes.items():
      outcomes[goes] += times
  assert min(outcomes.values()) > STEPS / 20  # neither is rare


def test_refits_in_process_use_what_a_plain_model_allows():
  outcomes = {True: 0, False: 0}
  plan = reshard.plan(LAYOUT, LAYOUT)
  for seed in range(1, STEPS // STEPS_OF_ONE // 2 + 1):
    walk = Walk(random.Random(-seed))
    walk.session.close()
    walk.doubled = False
    memory = [reshard.RankBuffers(LAYOUT, {0: walk.inner[side]}) for side in SIDES[:2]]
    refit = reshard.InProcessRefit(plan, *memory, threads=1)
    for step in range(STEPS_OF_ONE):
      try:
        for _ in range(walk.rng.choice([0, 1, 2])):
          walk.disturb(walk.inner)
        if walk.rng.random() < 0.3:
          walk.mend()
        if walk.rng.random() < 0.2:
          try:
            walk.rng.choice(memory).refresh()
          except reshard.Error:
            pass
        walk.fill()
        goes = walk.usable(walk.inner)
        outcomes[goes] += 1
        if goes:
          refit.run()
          for name in SIZES:
            target, source = (walk.inner[side][name] for side in ("target", "source"))
            assert np.array_equal(as_array(target), as_array(source))
        else:
          before = walk.contents()
          with pytest.raises(reshard.InvalidArgumentError):
            refit.run()
          after = walk.contents()
          assert all(np.array_equal(before[key], after[key]) for key in before)
      except BaseException as error:
        error.add_note(f"seed {-seed}, step {step}")
        raise
  assert min(outcomes.values()) > STEPS / 40
