// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/transport/group.h"

namespace reshard {

/// A loadable module, `reshard_transport_NAME.so`, with a backend that needs an external library.
/// It is loaded on demand with RTLD_LOCAL, so that the program starts without the library, and
/// another copy of the library in the process (such as torch's Gloo or NCCL) is not disturbed.
struct TransportModule {
  /// kModuleAbi of the sources of the module, which must be equal to that of the program.
  std::uint64_t abi = 0;
  const char* name = "";
  /// The version of the library at run time: "UCX 1.13.1".
  std::string (*version)() = nullptr;
  /// Why it cannot make a group on this machine, or "".
  std::string (*reason)() = nullptr;
  /// As make_transport().
  Result<std::unique_ptr<Transport>> (*make)(ControlPlane& control,
                                             const TransportOptions& options) = nullptr;
  /// Only for "mpi", else null: broadcasts bytes from rank 0 to all processes of the launcher, so
  /// that they can agree on a rendezvous. `mine` is used on rank 0 only.
  Result<std::vector<std::byte>> (*broadcast)(std::span<const std::byte> mine) = nullptr;
  /// True if its messages move host memory, so that shm::with_direct_access() may add direct
  /// access.
  bool host_memory = false;
  /// Why its messages cannot be in the memory of a GPU on this machine, or "". Null: a module of
  /// host memory moves nothing else, any other one moves GPU memory.
  std::string (*gpu_reason)() = nullptr;
};

/// Incremented with every change to the interface between program and module.
inline constexpr std::uint64_t kModuleAbi = 4;

/// The name of the only symbol that a module exports: `const TransportModule* ()` with C linkage.
inline constexpr const char* kModuleSymbol = "reshard_transport_module";

/// Loads the module of this name; repeated calls return the same one. Searches $RESHARD_MODULES (a
/// folder), then the folders of the program and of the shared library or Python extension that has
/// this code, and reshard/ and ../lib/reshard/ relative to each. "mpi" has a module for each
/// library: the result is that of the launcher that started this process, else any that exists;
/// "mpi_openmpi" and "mpi_mpich" name one. Errors: `unsupported` if not built (names the package to
/// install), not found (lists the folders), not loadable (with the system's message), or built with
/// another kModuleAbi.
Result<const TransportModule*> load_module(std::string_view name);

}  // namespace reshard
