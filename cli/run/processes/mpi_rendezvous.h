// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/base/file.h"
#include "reshard/transport/rendezvous.h"

namespace reshard::cli {

/// A rendezvous for processes that were not given one.
struct MpiRendezvous {
  std::string url;
  Secret secret;
  FileDescriptor listener;  ///< of the first process, at the port of `url`; none in the others.
};

/// The first process listens at a free port of its host, and broadcasts the address and a secret by
/// MPI.
/// Collective over the processes of `launcher`. `interface`: a network interface of the host, or
/// empty. Errors: no MPI; no such interface.
Result<MpiRendezvous> rendezvous_by_mpi(bool is_first, const std::string& interface,
                                        const std::string& launcher);

/// The version of this build: "0.1.0".
std::string_view version();

}  // namespace reshard::cli
