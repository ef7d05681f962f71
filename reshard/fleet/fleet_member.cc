// SPDX-License-Identifier: Apache-2.0
#include "reshard/fleet/fleet_member.h"

#include <fmt/format.h>

#include <atomic>
#include <deque>
#include <utility>

#include "reshard/fleet/messages.h"
#include "reshard/transport/listening_socket.h"

namespace reshard::fleet {
namespace {

/// Longest wait for a server that takes no messages.
constexpr std::chrono::seconds kSendLimit{20};

class Member final : public FleetMember {
 public:
  Member(std::string job, std::unique_ptr<ControlConnection> connection, ListeningSocket listener)
      : job_(std::move(job)), connection_(std::move(connection)), listener_(std::move(listener)) {}

  Result<> enter(JoinRequest request, Deadline deadline) {
    const std::string& host = connection_->local_host();
    request.address = fmt::format(
        "{}:{}", host.find(':') != std::string::npos ? "[" + host + "]" : host, listener_.port());
    RESHARD_TRY(send(std::move(request)));
    const auto answer = RESHARD_TRY(receive(deadline));
    if (!answer) return fail(Code::deadline, "fleet: the server does not answer");
    if (std::holds_alternative<WelcomeMessage>(*answer)) return {};
    return fail(Code::invalid_argument, "fleet: " + std::get<Action>(*answer).text);
  }

  Result<> ready() override { return send(ReadyMessage{}); }
  Result<> publish(std::int64_t version, int engines) override {
    return send(PublishMessage{version, engines});
  }
  Result<> report(std::int64_t round, bool has, std::int64_t keeps,
                  const std::string& error) override {
    return send(ReportMessage{round, has, keeps, error});
  }

  Result<std::optional<Action>> next(Deadline deadline) override {
    for (;;) {
      if (actions_.empty()) {
        auto message = RESHARD_TRY(receive(deadline));
        if (!message) return std::optional<Action>();
        if (auto* action = std::get_if<Action>(&*message)) actions_.push_back(std::move(*action));
        continue;
      }
      std::optional<Action> first(std::move(actions_.front()));
      actions_.pop_front();
      if (first->kind == Action::Kind::drop)
        return fail(Code::aborted, "fleet: the server dropped this process, which was late");
      // One of a round that was reported.
      if (first->kind != Action::Kind::cancel) return first;
    }
  }

  Result<ProcessGroup> make_group(const Action& order, std::string_view transport,
                                  const TransportOptions& options) override {
    RendezvousOptions join;
    join.url = "tcp://" + order.address;
    join.job = fmt::format("{}-{}-{}", job_, order.epoch, order.round);
    join.rank = Rank(order.rank);
    for (const Participant& p : order.participants) join.size += p.size;
    join.secret = connection_->secret();
    join.listener = order.rank == 0 ? listener_.fd() : -1;
    join.settings = {{"transport", std::string(transport)}};
    join.deadline = options.deadline;
    join.gives_up = [&] { return why_cancelled(order.round); };
    return join_group(transport, join, options);
  }

  void cancel() override { connection_->cancel(); }

 private:
  Result<> send(MemberMessage message) {
    return connection_->send(encode(message), Deadline::after(kSendLimit));
  }
  Result<std::optional<ServerMessage>> receive(Deadline deadline) {
    const auto bytes = RESHARD_TRY(connection_->receive(deadline));
    if (!bytes) return std::optional<ServerMessage>();
    return std::optional(RESHARD_TRY(parse_server_message(*bytes)));
  }

  /// Takes what has arrived while the group forms: "" if the round goes on. Actions other than
  /// cancels wait for next().
  std::string why_cancelled(std::int64_t round) {
    while (cancelled_ != round) {
      auto message = receive(Deadline::after(std::chrono::seconds(0)));
      if (!message) return message.error().message;
      if (!*message) return "";
      auto* action = std::get_if<Action>(&**message);
      if (action == nullptr) continue;
      if (action->kind == Action::Kind::cancel)
        cancelled_ = action->round;
      else
        actions_.push_back(std::move(*action));
    }
    return "another process of the group was lost or has failed";
  }

  const std::string job_;
  const std::unique_ptr<ControlConnection> connection_;
  const ListeningSocket listener_;
  std::deque<Action> actions_;
  std::int64_t cancelled_ = 0;  ///< the last round that the server has cancelled; 0: none.
};

}  // namespace

Result<std::unique_ptr<FleetMember>> FleetMember::join(
    const ControlAddress& address, JoinRequest request, Deadline deadline,
    const std::function<std::string()>& gives_up) {
  auto connection = RESHARD_TRY(ControlConnection::connect(address, deadline, gives_up));
  auto listener = RESHARD_TRY(ListeningSocket::make());
  auto made = std::make_unique<Member>(address.job, std::move(connection), std::move(listener));
  RESHARD_TRY(made->enter(std::move(request), deadline));
  return made;
}

}  // namespace reshard::fleet
