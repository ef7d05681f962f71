// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/message/message_path.h"

#include <algorithm>
#include <array>

#include "reshard/exec/direct/delivery_copies.h"
#include "reshard/exec/message/message_steps.h"
#include "reshard/exec/message/message_work.h"
#include "reshard/memory/host_buffer.h"

namespace reshard::message {
namespace {

/// A chunk of this size stays in the caches between packing and sending.
constexpr Index kMostStaged = Index{1} << 20;
constexpr Index kChunkUnitBytes = Index{1} << 20;

Index most_staged(Index staging_bytes) {
  return std::min(kMostStaged, staging_bytes / kRingSteps / 64 * 64);
}

class MessagePath final : public RankPath {
 public:
  explicit MessagePath(const RankWork& work)
      : transport_(work.transport), control_(work.control), progress_(work.options.progress) {}

  std::string_view name() const override { return "message"; }
  Index staging_bytes() const override { return static_cast<Index>(staging_.size()); }
  Result<> prepare(const RankWork& work);
  Result<> run(Deadline deadline, RankReport& report) override;

 private:
  /// State of one run().
  struct Flight {
    Deadline deadline;
    ProgressMeter& meter;
    std::array<std::unique_ptr<Event>, kWindow> events = {};
    std::size_t over = 0;  ///< steps that are complete; later ones are in progress.
    std::size_t locals = 0;
    PhaseClock clock = {};
    double first = 0;  ///< seconds until the first step was complete.
    bool stopped = false;
  };

  Result<> prepare_locals(const RankWork& work);
  Result<> share_memory(const RankWork& work);
  Result<> begin(Flight& flight, std::size_t step);
  Result<bool> is_over(Flight& flight);
  Result<> await(Flight& flight);
  void end_step(Flight& flight);
  void copy_local(Flight& flight);
  Result<> move(Flight& flight);

  Transport& transport_;
  ControlPlane& control_;
  Progress progress_;
  MessageSchedule schedule_;
  MessageSteps steps_;
  direct::CopyUnits locals_, repeats_;
  MessageWork work_;
  HostBuffer own_staging_;
  std::span<std::byte> staging_;
  Index delivered_ = 0, total_ = 0, copies_ = 0;
};

Result<direct::CopyUnits> units_between(const std::vector<Move>& moves, const RankBuffers* from,
                                        const RankBuffers* to, const char* from_side) {
  std::vector<CopyTask> tasks;
  std::vector<std::size_t> groups;
  for (const Move& m : moves) {
    const std::byte* src = from == nullptr ? nullptr : from->at(m.src, m.src_slot);
    std::byte* dst = to == nullptr ? nullptr : to->at(m.dst, m.dst_slot);
    // Without buffers there is no layout to name the local tensor from. For ranks that also have
    // peers, message_schedule() reports the same error first.
    if (src == nullptr || dst == nullptr) {
      const bool lacks_source = src == nullptr;
      const RankBuffers* there = lacks_source ? from : to;
      if (there == nullptr)
        return fail(Code::invalid_argument, std::string(lacks_source ? from_side : "target") +
                                                " buffers of rank " +
                                                std::to_string(m.dst.value()) + " are missing");
      return tl::unexpected(direct::missing_memory(lacks_source ? from_side : "target",
                                                   there->layout(), m.dst,
                                                   lacks_source ? m.src_slot : m.dst_slot));
    }
    groups.push_back(tasks.size());
    tasks.push_back({m.copy, src, dst, m.conversion});
  }
  return direct::make_units(tasks, groups, kChunkUnitBytes);
}

Result<> MessagePath::prepare_locals(const RankWork& work) {
  const auto locals = RESHARD_TRY(copy_ops(work.planner, work.part.locals));
  const auto repeats = RESHARD_TRY(duplicate_copies(work.planner, work.part.recvs));
  locals_ = RESHARD_TRY(units_between(locals, work.source, work.target, "source"));
  repeats_ = RESHARD_TRY(units_between(repeats, work.target, work.target, "target"));
  copies_ = static_cast<Index>(locals.size() + repeats.size());
  for (const direct::CopyUnits* units : {&locals_, &repeats_})
    for (const Index bytes : units->bytes) {
      delivered_ += bytes;
      total_ += bytes;
    }
  return {};
}

/// Lets peers write large messages into place, without an intermediate copy.
Result<> MessagePath::share_memory(const RankWork& work) {
  if (!transport_.capabilities().registers) return {};
  std::vector<std::span<std::byte>> memory;
  if (!work.part.recvs.empty()) memory = work.target->memory(work.me());
  if (!work.part.sends.empty())
    for (const auto span : work.source->memory(work.me())) memory.push_back(span);
  if (!staging_.empty()) memory.push_back(staging_);
  for (const auto span : memory) {
    const auto key = transport_.share(span);
    // Memory that cannot be registered, such as a mapped file, can still be sent from.
    if (!key && key.error().code != Code::unsupported) return tl::unexpected(key.error());
  }
  return {};
}

Result<> MessagePath::prepare(const RankWork& work) {
  const Index staged = most_staged(work.options.staging_bytes);
  schedule_ =
      RESHARD_TRY(message_schedule(work.planner, work.part, work.source, work.target,
                                   transport_.size(), {staged, work.options.in_place_bytes}));
  RESHARD_TRY(prepare_locals(work));
  steps_ = group_into_steps(schedule_, staged);
  const auto wanted = static_cast<std::size_t>(steps_.staging_bytes);
  if (work.hooks.staging.size() >= wanted) {
    staging_ = work.hooks.staging.first(wanted);
  } else {
    // Peers that can map the staging need no system call to read it.
    HostBuffer::Options options{.prefault_threads = 1};
    options.shared = transport_.capabilities().direct;
    own_staging_ = RESHARD_TRY(HostBuffer::allocate(steps_.staging_bytes, options));
    staging_ = own_staging_.bytes();
  }
  place_in_staging(steps_, schedule_, staging_.data());
  work_ = MessageWork(work.hooks.before, work.hooks.after, schedule_, locals_, repeats_);
  for (const MessageStep& step : steps_.steps) {
    delivered_ += step.received;
    total_ += step.bytes;
  }
  copies_ += static_cast<Index>(schedule_.tasks.size());
  return share_memory(work);
}

Result<> MessagePath::begin(Flight& flight, std::size_t i) {
  const MessageStep& step = steps_.steps[i];
  const std::span<const CopyTask> tasks(schedule_.tasks);
  work_.before_sends(step.first, step.end);
  for (std::size_t o = step.first; o < step.end; ++o)
    if (const ChunkOp& op = schedule_.ops[o]; op.is_send)
      run_copies(tasks.subspan(op.first_task, op.end_task - op.first_task), CopyHint::cached);
  flight.events[i % kWindow] = RESHARD_TRY(transport_.exchange(
      std::span(steps_.sends).subspan(step.first_send, step.end_send - step.first_send),
      std::span(steps_.recvs).subspan(step.first_recv, step.end_recv - step.first_recv)));
  return {};
}

/// Polls the oldest step in progress, and ends it if it is complete.
Result<bool> MessagePath::is_over(Flight& flight) {
  if (!RESHARD_TRY(flight.events[flight.over % kWindow]->test())) return false;
  end_step(flight);
  return true;
}

/// Returns once the oldest step in progress is complete; meanwhile copies what stays on this rank.
Result<> MessagePath::await(Flight& flight) {
  while (flight.locals < locals_.size()) {
    if (RESHARD_TRY(is_over(flight))) return {};
    copy_local(flight);
    if (flight.stopped) return {};
  }
  RESHARD_TRY(flight.events[flight.over % kWindow]->wait(flight.deadline));
  end_step(flight);
  return {};
}

void MessagePath::end_step(Flight& flight) {
  const MessageStep& step = steps_.steps[flight.over];
  flight.events[flight.over % kWindow].reset();
  if (flight.over++ == 0) flight.first = flight.clock.seconds();
  const std::span<const CopyTask> tasks(schedule_.tasks);
  for (std::size_t o = step.first; o < step.end; ++o)
    if (const ChunkOp& op = schedule_.ops[o]; !op.is_send)
      run_copies(tasks.subspan(op.first_task, op.end_task - op.first_task), work_.hint());
  work_.after_receives(step.first, step.end);
  flight.stopped = !flight.meter.add(0, step.bytes, step.received);
}

void MessagePath::copy_local(Flight& flight) {
  work_.before_local(flight.locals);
  run_copies(locals_.tasks_of(flight.locals), work_.hint());
  work_.after_local(flight.locals);
  flight.stopped = !flight.meter.add(0, locals_.bytes[flight.locals++]);
}

Result<> MessagePath::move(Flight& flight) {
  const std::size_t n = steps_.steps.size();
  for (std::size_t i = 0; i < n && !flight.stopped; ++i) {
    while (flight.over < steps_.steps[i].after && !flight.stopped) RESHARD_TRY(await(flight));
    if (flight.stopped) break;
    RESHARD_TRY(begin(flight, i));
    while (flight.over <= i && !flight.stopped)
      if (!RESHARD_TRY(is_over(flight))) break;
  }
  while (flight.over < n && !flight.stopped) RESHARD_TRY(await(flight));
  while (flight.locals < locals_.size() && !flight.stopped) copy_local(flight);
  copy_fence();
  for (std::size_t u = 0; u < repeats_.size() && !flight.stopped; ++u) {
    run_copies(repeats_.tasks_of(u), work_.hint());
    work_.after_repeat(u);
    flight.stopped = !flight.meter.add(0, repeats_.bytes[u]);
  }
  if (!flight.stopped) work_.finish();
  copy_fence();
  return flight.meter.finish();
}

Result<> MessagePath::run(Deadline deadline, RankReport& report) {
  ProgressMeter meter("refit", total_, progress_, deadline, &control_);
  {
    work_.restart();
    Flight flight{deadline, meter};
    if (auto done = move(flight); !done) {
      // Abort before dropping the pending messages: peers then see the cause, not its consequence.
      control_.abort(done.error().message);
      return done;
    }
    report.wait_seconds = flight.first;
    report.move_seconds = flight.clock.seconds() - flight.first;
  }
  report.bytes = delivered_;
  report.copies = copies_;
  report.messages = static_cast<Index>(schedule_.ops.size());
  // No rank reports success before all have their bytes.
  return control_.barrier(deadline);
}

}  // namespace

Result<std::unique_ptr<RankPath>> make_message_path(const RankWork& work) {
  auto path = std::make_unique<MessagePath>(work);
  RESHARD_TRY(path->prepare(work));
  return path;
}

}  // namespace reshard::message

namespace reshard {

Index staging_bound(Index staging_bytes) {
  return message::kRingSteps * message::most_staged(staging_bytes);
}

}  // namespace reshard
