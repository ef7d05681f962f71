// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "reshard/base/hash.h"
#include "reshard/exec/message_schedule.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/plan/moves.h"

namespace reshard {
namespace {

/// Chunks of one rank that are under way at once.
constexpr Index kWindow = 8;
constexpr Index kLeastChunk = Index{4} << 10, kMostChunk = Index{8} << 20;

struct Agreement {
  std::uint64_t digest;
  Index chunk_bytes;
};

/// Every rank's digest must be this one's; the chunk size is the least that any rank can stage.
Result<Index> agree(const Planner& planner, Index chunk_bytes, ControlPlane& control,
                    Deadline deadline) {
  const Agreement mine{planner.digest(), chunk_bytes};
  const auto all = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(&mine, 1)), deadline));
  for (std::size_t r = 0; r < all.size(); ++r) {
    Agreement theirs{};
    if (all[r].size() != sizeof theirs)
      return fail(Code::corrupt, fmt::format("rank {} sent {} bytes to agree on the plan, not {}",
                                             r, all[r].size(), sizeof theirs));
    std::memcpy(&theirs, all[r].data(), sizeof theirs);
    if (theirs.digest != mine.digest)
      return fail(Code::invalid_argument,
                  fmt::format("rank {} has plan {} but rank {} has plan {}; all ranks must pass "
                              "equal models, layouts and options",
                              r, hex(theirs.digest), control.rank().value(), hex(mine.digest)));
    chunk_bytes = std::min(chunk_bytes, theirs.chunk_bytes);
  }
  if (chunk_bytes < kLeastChunk)
    return fail(Code::invalid_argument,
                fmt::format("staging of {} bytes is too small; give every rank {} or more",
                            chunk_bytes * kWindow, kLeastChunk * kWindow));
  return chunk_bytes;
}

void run_moves(const std::vector<Move>& moves, const RankBuffers& from, const RankBuffers& to) {
  for (const Move& m : moves) {
    const CopyTask task{m.copy, from.at(m.src, m.src_slot), to.at(m.dst, m.dst_slot), m.conversion};
    run_copies({&task, 1}, CopyHint::streaming);
  }
  copy_fence();
}

}  // namespace

struct MessageRefit::State {
  Transport& transport;
  ControlPlane& control;
  MessageOptions options;
  const RankBuffers *source, *target;
  std::vector<ChunkOp> ops;
  std::vector<Move> locals, repeats;
  HostBuffer staging;
  Index chunk_bytes = 0, bytes = 0, moved = 0;

  std::byte* slot(std::size_t op) {
    return staging.data() + static_cast<Index>(op) % kWindow * chunk_bytes;
  }
  Result<std::unique_ptr<Event>> begin(std::size_t i);
  void end(std::size_t i);
  Result<> exchange_all(Deadline deadline, ProgressMeter& meter);
};

MessageRefit::MessageRefit(std::unique_ptr<State> state) : state_(std::move(state)) {}
MessageRefit::MessageRefit(MessageRefit&&) noexcept = default;
MessageRefit& MessageRefit::operator=(MessageRefit&&) noexcept = default;
MessageRefit::~MessageRefit() = default;

Index MessageRefit::staging_bytes() const { return state_->staging.size(); }

Result<MessageRefit> MessageRefit::prepare(const Planner& planner, const RankBuffers* source,
                                           const RankBuffers* target, Transport& transport,
                                           ControlPlane& control, MessageOptions options) {
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(options.seconds));
  const Index wanted = std::min(kMostChunk, options.staging_bytes / kWindow / 64 * 64);
  const Index chunk = RESHARD_TRY(agree(planner, wanted, control, deadline));
  const Rank me = transport.rank();
  const RankPlan part = planner.part(me);
  auto state = std::make_unique<State>(
      State{transport, control, std::move(options), source, target, {}, {}, {}, {}, chunk, 0, 0});
  state->ops =
      RESHARD_TRY(message_schedule(planner, part, source, target, transport.size(), chunk));
  state->locals = RESHARD_TRY(moves_of(planner, part.locals));
  state->repeats = RESHARD_TRY(repeats_of(planner, part.recvs));
  for (const Move& m : state->locals) {
    if (source == nullptr || source->at(me, m.src_slot) == nullptr || target == nullptr ||
        target->at(me, m.dst_slot) == nullptr)
      return fail(Code::invalid_argument,
                  fmt::format("buffers of local tensor '{}' on rank {} are not set",
                              planner.target().slot(m.dst_slot).name, me.value()));
    state->bytes += m.copy.bytes();
  }
  bool staged = false;
  for (const ChunkOp& op : state->ops) {
    staged |= op.in_place == nullptr;
    state->bytes += op.is_send ? 0 : op.bytes;
    state->moved += op.bytes;
  }
  if (staged) state->staging = RESHARD_TRY(HostBuffer::allocate(chunk * kWindow, {1}));
  return MessageRefit(std::move(state));
}

Result<std::unique_ptr<Event>> MessageRefit::State::begin(std::size_t i) {
  ChunkOp& op = ops[i];
  const auto n = static_cast<std::size_t>(op.bytes);
  std::byte* memory = op.in_place != nullptr ? op.in_place : slot(i);
  if (!op.is_send) {
    const Recv recv{op.peer, op.id, {memory, n}};
    return transport.exchange({}, {&recv, 1});
  }
  for (CopyTask task : op.tasks) {
    task.dst = memory;
    run_copies({&task, 1}, CopyHint::cached);
  }
  const Send send{op.peer, op.id, {memory, n}};
  return transport.exchange({&send, 1}, {});
}

void MessageRefit::State::end(std::size_t i) {
  if (ops[i].is_send || ops[i].in_place != nullptr) return;
  for (CopyTask task : ops[i].tasks) {
    task.src = slot(i);
    run_copies({&task, 1}, CopyHint::streaming);
  }
}

Result<> MessageRefit::State::exchange_all(Deadline deadline, ProgressMeter& meter) {
  std::array<std::unique_ptr<Event>, kWindow> events;
  const std::size_t n = ops.size(), window = kWindow;
  for (std::size_t i = 0; i < n + window; ++i) {
    auto& event = events[i % window];
    if (i >= window && i - window < n) {
      RESHARD_TRY(event->wait(deadline));
      end(i - window);
      if (!meter.add(0, ops[i - window].bytes)) break;
    }
    if (i < n) event = RESHARD_TRY(begin(i));
  }
  copy_fence();
  return {};
}

Result<RefitReport> MessageRefit::run() {
  State& s = *state_;
  const auto start = std::chrono::steady_clock::now();
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(s.options.seconds));
  ProgressMeter meter("refit", s.moved, s.options.progress, deadline);
  if (!s.locals.empty()) run_moves(s.locals, *s.source, *s.target);
  auto done = s.exchange_all(deadline, meter);
  if (done) done = meter.finish();
  if (done && !s.repeats.empty()) run_moves(s.repeats, *s.target, *s.target);
  // Nobody reports success before everybody has it.
  if (done) done = s.control.barrier(deadline);
  if (!done) {
    s.control.abort(done.error().message);
    (void)s.control.quiesce(Deadline::after(std::chrono::seconds(5)));
    return tl::unexpected(std::move(done).error());
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return RefitReport{seconds, s.bytes,
                     static_cast<Index>(s.ops.size() + s.locals.size() + s.repeats.size())};
}

}  // namespace reshard
