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

/// A parsed rendezvous URL: a folder, a host and port, or a socket of this process.
struct RendezvousAddress {
  std::string folder;  ///< of file://, else empty.
  std::string host;    ///< of tcp://, else empty.
  int port = 0;
  int fd = -1;  ///< of fd://, else -1.
};
/// Port 0 if `any_port`, and the URL says 0. Errors: `invalid_argument`.
Result<RendezvousAddress> parse_url(std::string_view url, bool any_port = false);
/// Letters, digits, '-', '_', '.', 1 to 64 of them. Errors: `invalid_argument`.
Result<> check_job(std::string_view job);

/// The content of a rendezvous file, by which the other ranks find rank 0.
struct RendezvousFile {
  Instance instance{};
  int port = 0;
  std::vector<std::string> addresses;
  Secret secret;  ///< empty if the ranks have one of their own.
};
std::string format_rendezvous_file(const RendezvousFile& file);
/// Errors: `corrupt`.
Result<RendezvousFile> parse_rendezvous_file(std::string_view text);

std::string rendezvous_file_path(const std::string& folder, std::string_view job);
/// Writes the file atomically, readable by its owner only. Errors: `io`.
Result<> write_rendezvous_file(const std::string& path, const RendezvousFile& file);
/// Errors: `not_found`; `corrupt`, also for a file that belongs to another user or that others may
/// read, because anybody may have put it there; `io`.
Result<RendezvousFile> read_rendezvous_file(const std::string& path);
/// Removes the file if it still is that of this instance.
void remove_rendezvous_file(const std::string& path, const Instance& instance);

}  // namespace reshard::tcp
