// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/transport/rendezvous.h"

namespace reshard::cli {

/// A rendezvous for processes that were not given one.
struct MpiRendezvous {
  std::string url;
  Secret secret;
};

/// The first process chooses an address of its host and a secret, and broadcasts them by MPI.
/// Collective over the processes of `launcher`. `interface`: a network interface of the host, or
/// empty. Errors: no MPI; no such interface.
Result<MpiRendezvous> rendezvous_by_mpi(bool is_first, const std::string& interface,
                                        const std::string& launcher);

/// The version of this build: "0.1.0".
std::string_view version();

}  // namespace reshard::cli
