// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/transport/rendezvous.h"

namespace reshard::cli {

/// Where processes meet that nobody gave a rendezvous.
struct Meeting {
  std::string url;
  Secret secret;
};

/// The first process chooses an address of its host and a secret, MPI tells the others. Collective
/// over the processes of `launcher`. `interface` names one of the host's, or is empty. Errors: no
/// MPI to ask; no such interface.
Result<Meeting> meet_by_mpi(bool is_first, const std::string& interface,
                            const std::string& launcher);

/// A folder of this user's own in the system's folder for temporary files, gone with the object.
class TemporaryFolder {
 public:
  /// Errors: the system refuses.
  static Result<TemporaryFolder> make();
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// Of this build, as `reshard --version` prints it: "0.1.0".
std::string_view version();

}  // namespace reshard::cli
