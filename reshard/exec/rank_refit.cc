// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/rank_refit.h"

#include <chrono>

#include "reshard/exec/agreement.h"
#include "reshard/exec/direct/direct_path.h"
#include "reshard/exec/end_group.h"
#include "reshard/exec/host/program_path.h"
#include "reshard/exec/message/message_path.h"
#include "reshard/exec/rank_path.h"

namespace reshard {
namespace {

/// Bytes of transfers, in the form in which values travel.
Index wire_bytes(const Planner& planner, const std::vector<Transfer>& transfers) {
  Index bytes = 0;
  for (const Transfer& t : transfers) bytes += t.box.volume() * planner.element_bits(t.tensor) / 8;
  return bytes;
}

}  // namespace

struct RankRefit::State {
  ControlPlane& control;
  double seconds;
  std::unique_ptr<RankPath> path;
  std::string reason;
  RankReport counts;
};

RankRefit::RankRefit(std::unique_ptr<State> state) : state_(std::move(state)) {}
RankRefit::RankRefit(RankRefit&&) noexcept = default;
RankRefit& RankRefit::operator=(RankRefit&&) noexcept = default;
RankRefit::~RankRefit() = default;

namespace {

struct Prepared {
  std::unique_ptr<RankPath> path;
  std::string reason;
};

/// The path that every rank can take. Sets `alike` if the error is identical on all ranks.
Result<Prepared> choose_path(const RankWork& work, const Agreed& agreed, bool& alike) {
  const bool direct = agreed.direct;
  Prepared out;
  if (!agreed.converts) {
    auto outcome = RESHARD_TRY(host::make_program_path(work, direct));
    if (outcome.path != nullptr)
      return Prepared{std::move(outcome.path), std::move(outcome.reason)};
    alike = true;
    return fail(Code::unsupported, "direct path: " + outcome.reason);
  }
  if (work.options.path != RefitPath::message) {
    if (direct) {
      auto outcome = RESHARD_TRY(direct::make_direct_path(work));
      out = {std::move(outcome.path), std::move(outcome.reason)};
    } else {
      out.reason = "transport " + std::string(work.transport.name()) +
                   " cannot reach peers' memory on every rank";
    }
  }
  if (out.path == nullptr && work.options.path == RefitPath::direct) {
    alike = true;
    return fail(Code::unsupported, "direct path: " + out.reason);
  }
  if (out.path == nullptr) {
    out.path = RESHARD_TRY(message::make_message_path(work));
    // A rank that could not prepare has aborted the group, so no rank begins without it.
    RESHARD_TRY(work.control.barrier(work.deadline));
  }
  return out;
}

}  // namespace

Result<RankRefit> RankRefit::prepare(const Planner& planner, const RankBuffers* source,
                                     const RankBuffers* target, Transport& transport,
                                     ControlPlane& control, const RankRefitOptions& options) {
  return prepare(planner, source, target, transport, control, options, RankRefitHooks{});
}

Result<RankRefit> RankRefit::prepare(const Planner& planner, const RankBuffers* source,
                                     const RankBuffers* target, Transport& transport,
                                     ControlPlane& control, const RankRefitOptions& options,
                                     const RankRefitHooks& hooks) {
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(options.seconds));
  const Capabilities can = transport.capabilities();
  if (hooks.tiles != nullptr && options.path != RefitPath::direct)
    return end_group(control, {Code::invalid_argument, "a tile consumer needs path = direct"});
  const bool converts = hooks.tiles != nullptr || hooks.before != nullptr || hooks.after != nullptr;
  auto agreement = agree(planner, options, can.direct && can.message, converts, control, deadline);
  // Every rank finds an error in the request itself; any other error only some may have.
  if (!agreement && agreement.error().code == Code::invalid_argument)
    return tl::unexpected(std::move(agreement).error());
  if (!agreement) return end_group(control, std::move(agreement).error());
  const Agreed agreed = *std::move(agreement);
  const RankPlan part = planner.rank_plan(transport.rank());
  const RankWork work{planner, part,           source, target,  transport,
                      control, agreed.options, hooks,  deadline};
  bool alike = false;
  auto prepared = choose_path(work, agreed, alike);
  if (!prepared && alike) return tl::unexpected(std::move(prepared).error());
  if (!prepared) return end_group(control, std::move(prepared).error());
  RankReport counts;
  counts.sent = wire_bytes(planner, part.sends);
  counts.received = wire_bytes(planner, part.recvs);
  counts.copied = wire_bytes(planner, part.locals);
  return RankRefit(std::make_unique<State>(State{
      control, options.seconds, std::move(prepared->path), std::move(prepared->reason), counts}));
}

Result<RankReport> RankRefit::run() {
  const PhaseClock clock;
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(state_->seconds));
  RankReport report = state_->counts;
  if (auto done = state_->path->run(deadline, report); !done) {
    auto failed = end_group(state_->control, std::move(done).error());
    return tl::unexpected(std::move(failed.value()).in("refit failed and left targets undefined"));
  }
  report.seconds = clock.seconds();
  report.finish_seconds = report.seconds - report.wait_seconds - report.move_seconds;
  return report;
}

std::string_view RankRefit::path() const { return state_->path->name(); }
const std::string& RankRefit::reason() const { return state_->reason; }
Index RankRefit::staging_bytes() const { return state_->path->staging_bytes(); }

}  // namespace reshard
