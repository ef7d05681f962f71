// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/rank_refit.h"

#include <chrono>

#include "reshard/exec/agreement.h"
#include "reshard/exec/end_group.h"
#include "reshard/exec/host/program_path.h"
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
  auto agreement = agree(planner, options, can.direct && can.message, control, deadline);
  // Every rank finds an error in the request itself; any other error only some may have.
  if (!agreement && agreement.error().code == Code::invalid_argument)
    return tl::unexpected(std::move(agreement).error());
  if (!agreement) return end_group(control, std::move(agreement).error());
  const Agreed agreed = *std::move(agreement);
  const RankPlan part = planner.rank_plan(transport.rank());
  const RankWork work{planner, part,           source, target,  transport,
                      control, agreed.options, hooks,  deadline};
  auto prepared = host::make_program_path(work, agreed.direct);
  if (!prepared) return end_group(control, std::move(prepared).error());
  // Identical on all ranks.
  if (prepared->path == nullptr) return fail(Code::unsupported, "direct path: " + prepared->reason);
  RankReport counts;
  counts.sent = wire_bytes(planner, part.sends);
  counts.received = wire_bytes(planner, part.recvs);
  counts.copied = wire_bytes(planner, part.locals);
  return RankRefit(std::make_unique<State>(State{
      control, options.seconds, std::move(prepared->path), std::move(prepared->reason), counts}));
}

Result<RankReport> RankRefit::run() { return run(nullptr); }
Result<RankReport> RankRefit::observe(ConversionObserver& observer) { return run(&observer); }

Result<RankReport> RankRefit::run(ConversionObserver* observer) {
  const PhaseClock clock;
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(state_->seconds));
  RankReport report = state_->counts;
  if (auto done = state_->path->run(deadline, observer, report); !done) {
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
