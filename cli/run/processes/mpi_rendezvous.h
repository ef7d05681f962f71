// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/transport/rendezvous.h"

namespace reshard::cli {

/// Where processes meet that nobody gave a rendezvous.
struct MpiRendezvous {
  std::string url;
  Secret secret;
};

/// The first process chooses an address of its host and a secret, MPI tells the others. Collective
/// over the processes of `launcher`. `interface` names one of the host's, or is empty. Errors: no
/// MPI to ask; no such interface.
Result<MpiRendezvous> rendezvous_by_mpi(bool is_first, const std::string& interface,
                                        const std::string& launcher);

/// Of this build, as `reshard --version` prints it: "0.1.0".
std::string_view version();

}  // namespace reshard::cli
