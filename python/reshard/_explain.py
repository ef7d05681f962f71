# SPDX-License-Identifier: Apache-2.0
"""A plan in plain English."""

from __future__ import annotations

import reshard
from reshard._arguments import checked
from reshard._units import human_bytes, percent, plural, rank_text

_SENDERS_SHOWN = 8


@checked
def explain(plan: reshard.Plan) -> str:
  """What a plan does, in plain English: who sends what, how busy ranks are, and what does not move.

  plan  from plan()

  Returns a few paragraphs. Adds up the transfers of all ranks, and so takes some seconds for plans
  between thousands of ranks.
  """
  paragraphs = [_sides(plan), _volume(plan), _balance(plan), *_peers(plan), _values(plan), _rest(plan)]
  return "\n\n".join(filter(None, paragraphs))


def _sides(plan: reshard.Plan) -> str:
  source, target = plan.source, plan.target
  shared = len(set(source.ranks) & set(target.ranks))
  overlap = f" {plural(shared, 'rank')} belong to both." if shared else " No rank belongs to both."
  return (
    f"The weights of {source.model.name} are in the layout {source.name} on "
    f"{plural(len(source.ranks), 'rank')} {rank_text(source.ranks)}, and shall be in {target.name} on "
    f"{plural(len(target.ranks), 'rank')} {rank_text(target.ranks)}.{overlap}"
  )


def _volume(plan: reshard.Plan) -> str:
  if plan.bytes_total == 0:
    return "Nothing moves."
  copies = plan.bytes_total / max(1, plan.source.model.bytes)
  text = (
    f"The target's ranks get {human_bytes(plan.bytes_total)} in all, which is {copies:.2f} times the model: "
    f"{human_bytes(plan.bytes_wire)} ({percent(plan.bytes_wire, plan.bytes_total)}) from other ranks, in "
    f"{plural(plan.messages, 'message')}"
  )
  if plan.bytes_local:
    text += f", and {human_bytes(plan.bytes_local)} from themselves, because they hold it already"
  return text + ". No rank receives an element twice."


def _balance(plan: reshard.Plan) -> str:
  if plan.bytes_wire == 0:
    return ""
  bound = plan.optimal_max_egress_bytes
  return (
    f"The busiest sender is rank {plan.busiest_sender} with {human_bytes(plan.max_egress_bytes)}. "
    f"Given who holds what, some rank must send at least {human_bytes(bound)}, so this is "
    f"{plan.max_egress_bytes / bound:.2f} times the least possible. The busiest receiver is rank "
    f"{plan.busiest_receiver} with {human_bytes(plan.max_ingress_bytes)}."
  )


def _peers(plan: reshard.Plan) -> list[str]:
  if plan.bytes_wire == 0 or plan.num_ranks > 1024:
    return []
  traffic = plan.traffic
  lines = []
  for sender in plan.source.ranks:
    peers = [t for t in plan.target.ranks if t != sender and traffic[sender, t]]
    if not peers:
      lines.append(f"  rank {sender} sends nothing")
      continue
    sent = sum(traffic[sender, t] for t in peers)
    lines.append(f"  rank {sender} sends {human_bytes(sent)} to {rank_text(peers)}")
  if len(lines) > _SENDERS_SHOWN:
    rest = len(lines) - _SENDERS_SHOWN
    lines = [*lines[:_SENDERS_SHOWN], f"  and {plural(rest, 'rank')} more; plan.traffic has all"]
  return ["Who sends:\n" + "\n".join(lines)]


def _values(plan: reshard.Plan) -> str:
  lines = [f"{row.how}: {plural(row.tensors, 'tensor')}, such as {row.example}." for row in plan.routes]
  lines += [f"It {use}." for use in plan.conversions]
  if not lines:
    return "Bits are copied unchanged."
  return "\n".join(lines)


def _rest(plan: reshard.Plan) -> str:
  lines = [f"{note}." for note in plan.notes]
  if plan.omitted:
    lines.append(
      f"{plural(len(plan.omitted), 'tensor')} of the source stay behind, because {plan.target.name} does not "
      f"hold them, such as {plan.omitted[0]}."
    )
  still = [t.name for t in plan.tensors if t.bytes and not plan.moves(t.name)]
  still = [name for name in still if name not in set(plan.omitted)]
  if still:
    what = plural(len(still), "tensor")
    lines.append(f"{what} do not move, because the plan was asked to leave them, such as {still[0]}.")
  return "\n".join(lines)
