# SPDX-License-Identifier: Apache-2.0
"""Law: adapters whose weights are on a GPU are merged there, after the work of the stream that is named.

For a real GPU only: the emulated one has no products. Run as gpu_cases.py is."""

import pytest
import torch

import reshard
import reshard.lora
from gpu_memory import gpu, is_emulated
from ranks import in_threads

pytestmark = pytest.mark.skipif(is_emulated(), reason="an emulated GPU multiplies no matrices")

SHAPES = {"x.weight": (96, 64), "x.lora_A.default.weight": (8, 64), "x.lora_B.default.weight": (96, 8)}
CONFIG = {"default": {"lora_alpha": 16, "r": 8}}


def values(seed, dtype=torch.bfloat16):
  generator = torch.Generator().manual_seed(seed)
  return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def exact(given):
  """The merged weight, summed in F64 and rounded once."""
  w, a, b = (given[name].double() for name in SHAPES)
  return (w + 2 * (b @ a)).to(given["x.weight"].dtype)


def is_close(got, given):
  """Equal but for sums in F32 that lie at the middle between two BF16 numbers."""
  got, expected = got.cpu(), exact(given)
  assert (got != expected).float().mean() < 0.01
  torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-3)
  return True


def model():
  return reshard.Model.from_tensors("small", {name: (shape, "bfloat16") for name, shape in SHAPES.items()})


def test_weights_are_merged_on_the_gpu_in_f32_whatever_the_trainer_allows():
  given = values(1)
  held = {name: tensor.to(gpu().device) for name, tensor in given.items()}
  merge = reshard.lora.Merge(reshard.layout("hf", model()), held, CONFIG)
  torch.set_float32_matmul_precision("medium")
  try:
    with torch.autocast("cuda", dtype=torch.bfloat16):
      merge.merge()
    assert torch.get_float32_matmul_precision() == "medium"
  finally:
    torch.set_float32_matmul_precision("highest")
  sent = merge.tensors["x.weight"]
  assert sent.device == gpu().device and is_close(sent, given)
  assert torch.equal(held["x.weight"].cpu(), given["x.weight"])


@pytest.mark.parametrize("form", ["stream", "address", "current"])
def test_what_a_stream_still_writes_is_merged(form):
  first, then = values(1), values(2)
  held = {name: tensor.to(gpu().device) for name, tensor in first.items()}
  later = {name: tensor.to(gpu().device) for name, tensor in then.items()}
  merge = reshard.lora.Merge(reshard.layout("hf", model()), held, CONFIG)
  merge.merge()  # Loads the kernels.
  stream = gpu().stream()
  torch.cuda.synchronize()
  with torch.cuda.stream(stream):
    torch.cuda._sleep(200_000_000)  # 0.1 s of the GPU
    for name, tensor in later.items():
      held[name].copy_(tensor)
    if form == "current":
      merge.merge()
  if form != "current":
    merge.merge(stream if form == "stream" else stream.cuda_stream)
  gpu().synchronize(stream)
  assert is_close(merge.tensors["x.weight"], then)


def test_ranks_merge_their_parts_with_factors_of_both_and_send_them():
  given = values(3)
  of = model()
  builder = reshard.LayoutBuilder("cut", of)
  parts = [{}, {}]
  for name, shape in SHAPES.items():
    half = shape[0] // 2
    for rank in (0, 1):
      box = [(rank * half, (rank + 1) * half), (0, shape[1])]
      placed = reshard.PlacedBox(name, box, [0, 0])
      builder.add([rank], name, [half, shape[1]], "bfloat16", parts=[placed])
      parts[rank][name] = given[name][rank * half : (rank + 1) * half].contiguous().to(gpu().device)
  layout = builder.finish()

  def body(group):
    me = group.rank
    merge = reshard.lora.Merge(layout, parts[me], CONFIG, rank=me, group=group)
    whole = reshard.LayoutBuilder("whole", merge.layout.model)
    shape = SHAPES["x.weight"]
    box = [(0, n) for n in shape]
    whole.add([0, 1], "x.weight", list(shape), "bfloat16", parts=[reshard.PlacedBox("x.weight", box, [0, 0])])
    there = {"x.weight": torch.zeros(shape, dtype=torch.bfloat16, device=gpu().device)}
    with reshard.Session(
      group, source=merge.layout, source_tensors=merge.tensors, target=whole.finish(), target_tensors=there
    ) as session:
      merge.merge()
      session.refit(1)
      session.verify()
    merge.close()
    return there["x.weight"]

  for got in in_threads(2, body):
    assert is_close(got, given)
