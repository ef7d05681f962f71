// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/rank_refit.h"

#include <chrono>

#include "reshard/exec/message.h"

namespace reshard {

struct RankRefit::State {
  MessageRefit message;
  std::string reason;
};

RankRefit::RankRefit(std::unique_ptr<State> state) : state_(std::move(state)) {}
RankRefit::RankRefit(RankRefit&&) noexcept = default;
RankRefit& RankRefit::operator=(RankRefit&&) noexcept = default;
RankRefit::~RankRefit() = default;

Result<RankRefit> RankRefit::prepare(const Planner& planner, const RankBuffers* source,
                                     const RankBuffers* target, Transport& transport,
                                     ControlPlane& control, RankRefitOptions options) {
  const std::string only_messages = "ranks do not read each other's memory yet";
  if (options.path == RefitPath::direct) return fail(Code::unsupported, only_messages);
  const bool asked = options.path == RefitPath::message;
  const MessageOptions message{options.staging_bytes, options.seconds, std::move(options.progress)};
  auto refit = MessageRefit::prepare(planner, source, target, transport, control, message);
  if (!refit) {
    control.abort(refit.error().message);
    (void)control.quiesce(Deadline::after(std::chrono::seconds(5)));
    return tl::unexpected(std::move(refit).error());
  }
  return RankRefit(
      std::make_unique<State>(State{*std::move(refit), asked ? std::string() : only_messages}));
}

Result<RankReport> RankRefit::run() {
  RankReport report;
  static_cast<RefitReport&>(report) = RESHARD_TRY(state_->message.run());
  report.move_seconds = report.seconds;
  return report;
}

std::string_view RankRefit::path() const { return "message"; }
const std::string& RankRefit::reason() const { return state_->reason; }
Index RankRefit::staging_bytes() const { return state_->message.staging_bytes(); }

}  // namespace reshard
