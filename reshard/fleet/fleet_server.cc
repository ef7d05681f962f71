// SPDX-License-Identifier: Apache-2.0
#include "reshard/fleet/fleet_server.h"

#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <set>
#include <utility>

#include "reshard/fleet/messages.h"

namespace reshard::fleet {
namespace {

class Server final : public FleetServer {
 public:
  explicit Server(const Limits& limits) : state_(limits) {}

  Result<> start(const ControlAddress& address) {
    const std::lock_guard lock(mutex_);
    connections_ = RESHARD_TRY(ControlServer::serve(
        address, {.received = [this](ConnectionId from, auto bytes) { received(from, bytes); },
                  .lost = [this](ConnectionId id) { locked([&] { lose(id); }); },
                  .next_wake = [this] { return next_wake(); },
                  .wake = [this] { locked([&] { carry_out(state_.tick(now())); }); }}));
    return {};
  }

  const std::string& url() const override { return connections_->url(); }
  std::string text() const override {
    const std::lock_guard lock(mutex_);
    return state_.text();
  }

 private:
  static Time now() {
    return std::chrono::duration_cast<Time>(ControlServer::Clock::now().time_since_epoch());
  }
  template <class F>
  void locked(F f) {
    const std::lock_guard lock(mutex_);
    f();
  }

  std::optional<ControlServer::Clock::time_point> next_wake() const {
    const std::lock_guard lock(mutex_);
    const std::optional<Time> at = state_.next_time();
    if (!at) return std::nullopt;
    return ControlServer::Clock::time_point(
        std::chrono::duration_cast<ControlServer::Clock::duration>(*at));
  }

  void received(ConnectionId from, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    auto message = parse_member_message(bytes);
    // A process that breaks the protocol is disconnected as if it had died.
    if (!message || std::holds_alternative<JoinRequest>(*message) == members_.contains(from)) {
      connections_->close(from);
      return lose(from);
    }
    const MemberId member(from);
    if (const auto* join = std::get_if<JoinRequest>(&*message)) return enter(member, *join);
    if (std::holds_alternative<ReadyMessage>(*message))
      return carry_out(state_.ready(member, now()));
    if (const auto* publish = std::get_if<PublishMessage>(&*message))
      return carry_out(state_.publish(member, publish->version, publish->engines, now()));
    const auto& report = std::get<ReportMessage>(*message);
    carry_out(state_.report(member, report.round, report.has, report.keeps, report.error, now()));
  }

  void enter(MemberId member, const JoinRequest& join) {
    const auto actions = state_.join(member, join, now());
    if (actions.empty() || actions.front().kind != Action::Kind::refuse) {
      members_.insert(member.value());
      connections_->send(member.value(), encode(ServerMessage{WelcomeMessage{}}));
    }
    carry_out(actions);
  }

  void lose(ConnectionId id) {
    if (members_.erase(id) != 0) carry_out(state_.lose(MemberId(id), now()));
  }

  void carry_out(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      const ConnectionId to = action.to.value();
      connections_->send(to, encode(ServerMessage{action}));
      if (action.kind != Action::Kind::refuse && action.kind != Action::Kind::drop) continue;
      members_.erase(to);
      connections_->close(to);
    }
  }

  mutable std::mutex mutex_;  ///< guards state_ and members_; callbacks take it.
  FleetState state_;
  std::set<ConnectionId> members_;
  std::unique_ptr<ControlServer> connections_;  ///< ends first: its thread uses the others.
};

}  // namespace

Result<std::unique_ptr<FleetServer>> FleetServer::serve(const ControlAddress& address,
                                                        const Limits& limits) {
  if (address.job.size() > kMaxJob)
    return fail(Code::invalid_argument,
                fmt::format("fleet: the name of a fleet has at most {} characters", kMaxJob));
  auto made = std::make_unique<Server>(limits);
  RESHARD_TRY(made->start(address));
  return made;
}

}  // namespace reshard::fleet
