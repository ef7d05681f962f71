# SPDX-License-Identifier: Apache-2.0
"""Objects as text: what str() and print() show."""

import reshard
from reshard._units import human_bytes, percent, plural, rank_text, table

_KINDS_SHOWN = 200
_PEERS_SHOWN = 16


def _shape(shape: tuple[int, ...]) -> str:
  return "[" + ", ".join(map(str, shape)) + "]"


def model_text(model: reshard.Model) -> str:
  """A line about the model, then its kinds of tensors."""
  lines = [repr(model)[1:-1]]
  config = model.config
  if config is None:
    lines.append(f"  no config: {model.no_config}")
  else:
    experts = f", {config.num_experts} experts" if config.is_moe else ""
    lines.append(f"  {config.architecture}{experts}")
  if model.weights is not None:
    form = model.stored_as or model.decoded_from
    stored = f", stored as {form}" if form else ""
    lines.append(f"  {plural(len(model.weights.files), 'file')} in {model.weights.folder}{stored}")
  rows = [["tensors", "count", "dtype", "shape", "bytes"]]
  kinds = reshard.tensor_kinds(model)
  for kind in kinds[:_KINDS_SHOWN]:
    dtype = kind.dtype.name.upper()
    rows.append([kind.pattern, f"{kind.count:,}", dtype, _shape(kind.shape), human_bytes(kind.bytes)])
  lines.append(table(rows, "lrllr", title=True))
  if len(kinds) > _KINDS_SHOWN:
    lines.append(f"  and {len(kinds) - _KINDS_SHOWN} kinds more")
  return "\n".join(lines)


def layout_text(layout: reshard.Layout) -> str:
  """A line about the layout, then how it stores each kind of tensor."""
  rows = [["tensors", "count", "local tensor", "shape", "ranks", "how"]]
  for kind in reshard.explain_layout(layout)[:_KINDS_SHOWN]:
    local, shape = (kind.local, _shape(kind.shape)) if kind.local else ("-", "-")
    rows.append([kind.pattern, f"{kind.count:,}", local, shape, f"{kind.ranks:,}", kind.how])
  notes = [f"  {note}" for note in layout.notes]
  return "\n".join([repr(layout)[1:-1], *notes, table(rows, "lrllrl", title=True)])


def side_rows(plan: reshard.Plan) -> list[list[str]]:
  """Two rows: each side's layout, its ranks and their bytes."""
  rows = []
  for side, layout in (("from", plan.source), ("to", plan.target)):
    least, most = layout.bytes_per_rank
    each = f"{human_bytes(most)} each" if least == most else f"{human_bytes(least)} to {human_bytes(most)} each"
    rows.append([side, layout.name, plural(len(layout.ranks), "rank"), rank_text(layout.ranks), each])
  return rows


def total_rows(plan: reshard.Plan) -> list[list[str]]:
  """What the whole plan moves."""
  rows = [
    ["bytes delivered", human_bytes(plan.bytes_total), ""],
    ["  on the wire", human_bytes(plan.bytes_wire), percent(plan.bytes_wire, plan.bytes_total)],
    ["  local", human_bytes(plan.bytes_local), percent(plan.bytes_local, plan.bytes_total)],
    ["messages", f"{plan.messages:,}", ""],
    ["transfers", f"{plan.transfers:,}", ""],
  ]
  if plan.bytes_wire:
    bound = plan.optimal_max_egress_bytes
    ratio = f"{plan.max_egress_bytes / bound:.2f}x the least possible, {human_bytes(bound)}"
    rows.append(["busiest sender", human_bytes(plan.max_egress_bytes), f"rank {plan.busiest_sender}; {ratio}"])
    rows.append(["busiest receiver", human_bytes(plan.max_ingress_bytes), f"rank {plan.busiest_receiver}"])
  return rows


def note_lines(plan: reshard.Plan) -> list[str]:
  """What the plan does to values, and what it leaves out; empty for most plans."""
  lines = [*plan.notes, *map(str, plan.conversions)]
  lines += [f"{row.how}: {plural(row.tensors, 'tensor')}, such as '{row.example}'" for row in plan.routes]
  omitted = plan.omitted
  if omitted:
    what = plural(len(omitted), "tensor")
    lines.append(f"leaves out {what}, which {plan.target.name} does not hold, such as '{omitted[0]}'")
  return lines


def plan_text(plan: reshard.Plan) -> str:
  """The two layouts, the totals, and what happens to values."""
  lines = [
    repr(plan.source.model)[1:-1],
    table(side_rows(plan), "llrll"),
    "",
    table(total_rows(plan), "lrl"),
    *(f"  {line}" for line in note_lines(plan)),
    f"digest {plan.digest}",
  ]
  return "\n".join(lines)


def rank_plan_text(part: reshard.RankPlan) -> str:
  """A line about the rank, then its peers."""
  peers: dict[int, list[int]] = {}
  for sent in part.sends:
    peer = peers.setdefault(sent.dst, [0, 0, 0])
    peer[0] += sent.bytes
    peer[2] += 1
  for received in part.recvs:
    peer = peers.setdefault(received.src, [0, 0, 0])
    peer[1] += received.bytes
    peer[2] += 1
  order = sorted(peers.items(), key=lambda item: (-item[1][0] - item[1][1], item[0]))
  rows = [["peer", "sends it", "receives", "transfers"]]
  for rank, (to, of, count) in order[:_PEERS_SHOWN]:
    rows.append([f"rank {rank}", human_bytes(to), human_bytes(of), f"{count:,}"])
  lines = [repr(part)[1:-1], table(rows, "lrrr", title=True)]
  if len(order) > _PEERS_SHOWN:
    lines.append(f"  and {len(order) - _PEERS_SHOWN} more with less")
  return "\n".join(lines)
