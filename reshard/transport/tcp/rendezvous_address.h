// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/rendezvous.h"
#include "reshard/transport/tcp/cipher.h"

namespace reshard::tcp {

/// What a rendezvous URL says: a folder, a host and port, or a socket that this process has.
struct RendezvousAddress {
  std::string folder;  ///< empty for the others.
  std::string host;    ///< empty for the others.
  int port = 0;
  int door = -1;  ///< -1 for the others.
};
/// Errors: `invalid_argument`.
Result<RendezvousAddress> parse_url(std::string_view url);
/// Letters, digits, '-', '_', '.', 1 to 64 of them. Errors: `invalid_argument`.
Result<> check_job(std::string_view job);

/// What rank 0 writes for the others to find it.
struct RendezvousPoint {
  Instance instance{};
  int port = 0;
  std::vector<std::string> addresses;
  Secret secret;  ///< empty when the ranks brought one.
};
std::string meeting_text(const RendezvousPoint& meeting);
/// Errors: `corrupt`.
Result<RendezvousPoint> parse_meeting(std::string_view text);

std::string meeting_path(const std::string& folder, std::string_view job);
/// Puts the file there, whole and readable by its owner only. Errors: `io`.
Result<> write_meeting(const std::string& path, const RendezvousPoint& meeting);
/// Errors: `not_found`; `corrupt`, also for a file that is another user's or that others may read,
/// since anybody may have put it there; `io`.
Result<RendezvousPoint> read_meeting(const std::string& path);
/// Removes it if it still is this instance's.
void remove_meeting(const std::string& path, const Instance& instance);

}  // namespace reshard::tcp
