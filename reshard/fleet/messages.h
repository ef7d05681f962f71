// SPDX-License-Identifier: Apache-2.0
// The messages between a fleet's server and its members.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/fleet/fleet_state.h"

namespace reshard::fleet {

// From a member; the first one is a JoinRequest.
struct ReadyMessage {};
struct PublishMessage {
  std::int64_t version = kNoVersion;
  int engines = 0;
};
struct ReportMessage {
  std::int64_t round = 0;
  bool has = false;
  std::int64_t keeps = kNoVersion;
  std::string error = {};
};
using MemberMessage = std::variant<JoinRequest, ReadyMessage, PublishMessage, ReportMessage>;

/// From the server, once a member has joined.
struct WelcomeMessage {};
using ServerMessage = std::variant<WelcomeMessage, Action>;

std::vector<std::byte> encode(const MemberMessage& message);
std::vector<std::byte> encode(const ServerMessage& message);
/// Errors: `corrupt`, also for the messages of another release.
Result<MemberMessage> parse_member_message(std::span<const std::byte> bytes);
Result<ServerMessage> parse_server_message(std::span<const std::byte> bytes);

}  // namespace reshard::fleet
