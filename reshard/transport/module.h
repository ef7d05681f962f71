// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/transport/group.h"

namespace reshard {

/// A backend that needs an external library, as a loadable module: `reshard_transport_NAME.so`,
/// which only make_transport() loads, with RTLD_LOCAL, so that the program starts without the
/// library and another copy of it in the process (torch's own Gloo or NCCL) is not disturbed.
struct TransportModule {
  /// kModuleAbi of the sources that the module was built from; a differing one is refused.
  std::uint64_t abi = 0;
  const char* name = "";
  /// Of the library, as found at run time: "UCX 1.13.1".
  std::string (*version)() = nullptr;
  /// Empty, or why it cannot make a group here and now.
  std::string (*reason)() = nullptr;
  /// As make_transport().
  Result<std::unique_ptr<Transport>> (*make)(ControlPlane& control,
                                             const TransportOptions& options) = nullptr;
  /// Only of "mpi", else null: gives rank 0's bytes to all processes of the launcher, so that they
  /// find their rendezvous. `mine` counts on rank 0.
  Result<std::vector<std::byte>> (*broadcast)(std::span<const std::byte> mine) = nullptr;
  /// Its messages carry memory of the host: ranks of one host may get the direct path beside them
  /// (host_memory.h).
  bool host_memory = false;
};

/// Changes with every change of what crosses the border between program and module.
inline constexpr std::uint64_t kModuleAbi = 2;

/// Name of the one symbol that a module exports: `const TransportModule* ()`, with C linkage.
inline constexpr const char* kModuleSymbol = "reshard_transport_module";

/// The module of this name, loaded once. Looked for in $RESHARD_MODULES (a folder), beside the
/// program, and in reshard/ and ../lib/reshard/ from the program and from libreshard.so. `mpi` has
/// one for each library: the one of the launcher that started this process, else any that is there;
/// "mpi_openmpi" and "mpi_mpich" name one of them. Errors: `unsupported`: not built (with the
/// package that would bring it), not found (with the folders), its library does not load (with the
/// system's words), another abi.
Result<const TransportModule*> load_module(std::string_view name);

}  // namespace reshard
