// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/message/message_steps.h"

#include <algorithm>

namespace reshard::message {
namespace {

constexpr std::size_t kMostOps = 16;

/// Each chunk begins on its own cache line.
Index staged_bytes(const ChunkOp& op) {
  return op.in_place != nullptr ? 0 : (op.bytes + 63) / 64 * 64;
}

std::vector<MessageStep> group(const std::vector<ChunkOp>& ops, Index most) {
  std::vector<MessageStep> steps;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Index staged = staged_bytes(ops[i]);
    const bool joins = !steps.empty() && i - steps.back().first < kMostOps &&
                       steps.back().bytes + ops[i].bytes <= most &&
                       steps.back().staged_bytes + staged <= most;
    if (!joins) steps.emplace_back().first = i;
    MessageStep& step = steps.back();
    step.end = i + 1;
    step.bytes += ops[i].bytes;
    step.received += ops[i].is_send ? 0 : ops[i].bytes;
    step.staged_bytes += staged;
  }
  return steps;
}

/// Gives each step the staging after its predecessor's, or from the beginning if it does not fit
/// there, and records which steps must be complete first. `size` is enough for any two consecutive
/// steps.
void deal_ring(std::vector<MessageStep>& steps, Index size) {
  std::size_t live = 0;  // Steps [live, i) may be in progress when step i begins.
  Index at = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    MessageStep& step = steps[i];
    if (at + step.staged_bytes > size) at = 0;
    step.staging = at;
    at += step.staged_bytes;
    if (i >= kWindow) live = std::max(live, i + 1 - kWindow);
    for (std::size_t j = live; j < i && step.staged_bytes > 0; ++j)
      if (steps[j].staging < at && step.staging < steps[j].staging + steps[j].staged_bytes)
        live = j + 1;
    step.after = live;
  }
}

}  // namespace

MessageSteps group_into_steps(const MessageSchedule& schedule, Index most_staged) {
  MessageSteps out;
  out.steps = group(schedule.ops, most_staged);
  Index all = 0, most = 0;
  for (const MessageStep& step : out.steps) {
    all += step.staged_bytes;
    most = std::max(most, step.staged_bytes);
  }
  out.staging_bytes = std::min(all, kRingSteps * most);
  deal_ring(out.steps, out.staging_bytes);
  for (MessageStep& step : out.steps) {
    step.first_send = out.sends.size();
    step.first_recv = out.recvs.size();
    for (std::size_t i = step.first; i < step.end; ++i) {
      const ChunkOp& op = schedule.ops[i];
      const auto n = static_cast<std::size_t>(op.bytes);
      if (op.is_send) {
        out.sends.push_back({op.peer, op.id, {op.in_place, n}});
      } else {
        out.recvs.push_back({op.peer, op.id, {op.in_place, n}});
      }
    }
    step.end_send = out.sends.size();
    step.end_recv = out.recvs.size();
  }
  return out;
}

void place_in_staging(MessageSteps& steps, MessageSchedule& schedule, std::byte* staging) {
  for (const MessageStep& step : steps.steps) {
    std::byte* at = staging + step.staging;
    std::size_t send = step.first_send, recv = step.first_recv;
    for (std::size_t i = step.first; i < step.end; ++i) {
      const ChunkOp& op = schedule.ops[i];
      const std::size_t place = op.is_send ? send++ : recv++;
      if (op.in_place != nullptr) continue;
      const auto n = static_cast<std::size_t>(op.bytes);
      for (std::size_t t = op.first_task; t < op.end_task; ++t) {
        CopyTask& task = schedule.tasks[t];
        if (op.is_send) {
          task.dst = at;
        } else {
          task.src = at;
        }
      }
      if (op.is_send) {
        steps.sends[place].bytes = {at, n};
      } else {
        steps.recvs[place].bytes = {at, n};
      }
      at += staged_bytes(op);
    }
  }
}

}  // namespace reshard::message
