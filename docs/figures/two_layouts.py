#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws two_layouts.svg: one attention layer of 8 query heads and 4 groups, as four trainer ranks and as two engine
ranks hold it, and the pieces that travel between them.

  python3 docs/figures/two_layouts.py > docs/figures/two_layouts.svg
"""

CELL, ROW, LEFT, TOP = 44, 34, 150, 44
COLOURS = {"q": "#4c78a8", "k": "#f58518", "v": "#54a24b"}
SOURCE_X, TARGET_X = LEFT, LEFT + 520


def source():
  """Megatron's linear_qkv with tp=4: the rows of one group on each rank."""
  return [[f"q{2 * g}", f"q{2 * g + 1}", f"k{g}", f"v{g}"] for g in range(4)]


def target():
  """vLLM's qkv_proj with tp=2: all its q, then all its k, then all its v."""
  ranks = []
  for r in range(2):
    ranks.append([f"q{h}" for h in range(4 * r, 4 * r + 4)] + [f"{t}{g}" for t in "kv" for g in (2 * r, 2 * r + 1)])
  return ranks


def tensor(x, y, heads, out):
  """A local tensor as a column of heads; head -> the middle of its left and right edge."""
  at = {}
  for i, head in enumerate(heads):
    top = y + i * ROW
    out.append(f'<rect x="{x}" y="{top}" width="{CELL * 2}" height="{ROW - 2}" fill="{COLOURS[head[0]]}" rx="3"/>')
    out.append(f'<text x="{x + CELL}" y="{top + 21}" fill="white" text-anchor="middle">{head}</text>')
    at[head] = (x, x + CELL * 2, top + ROW / 2 - 1)
  return at


def main():
  out, from_, to = [], {}, {}
  for rank, heads in enumerate(source()):
    y = TOP + rank * (4 * ROW + 22)
    out.append(f'<text x="{SOURCE_X - 14}" y="{y + 2 * ROW + 4}" text-anchor="end" fill="#777">rank {rank}</text>')
    from_ |= tensor(SOURCE_X, y, heads, out)
  for rank, heads in enumerate(target()):
    y = TOP + rank * (8 * ROW + 44)
    label = TARGET_X + 2 * CELL + 14
    out.append(f'<text x="{label}" y="{y + 4 * ROW + 4}" fill="#777">rank {rank + 4}</text>')
    to |= tensor(TARGET_X, y, heads, out)
  for head, (_, right, y) in from_.items():
    left, _, end = to[head]
    bend = (right + left) / 2
    path = f"M{right + 4},{y} C{bend},{y} {bend},{end} {left - 4},{end}"
    out.append(f'<path d="{path}" fill="none" stroke="{COLOURS[head[0]]}" stroke-width="2.5" opacity="0.75"/>')
  height = TOP + 4 * (4 * ROW + 22)
  print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {TARGET_X + 2 * CELL + 90} {height}" '
        'font-family="sans-serif" font-size="15">')
  print(f'<text x="{SOURCE_X - 60}" y="24" fill="#777">trainer: megatron:tp=4, linear_qkv</text>')
  print(f'<text x="{TARGET_X - 60}" y="24" fill="#777">engine: vllm:tp=2, qkv_proj</text>')
  print("\n".join(out))
  print("</svg>")


if __name__ == "__main__":
  main()
