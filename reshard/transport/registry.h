// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// TransportStatus::gpu_reason of transports that never carry GPU memory.
inline constexpr std::string_view kHostMemoryOnly = "moves host memory only";

/// The state of a transport in this build and on this machine.
struct TransportStatus {
  std::string_view name;   ///< in options, and of Transport::name(). Static.
  bool built = false;      ///< its code is in this build.
  bool available = false;  ///< it can make a group on this machine. Implies built.
  /// The version of its library (or libraries), or of the backend if it has none; empty if not
  /// built or the library cannot be loaded.
  std::string version;
  std::string reason;        ///< why it is not available, or "".
  std::string gpu_reason;    ///< why messages cannot be in the memory of a GPU here, or "".
  std::string_view purpose;  ///< its use, in one line. Static.
};

/// The names of all transports, in the order of the documentation. Loads nothing.
std::vector<std::string_view> transport_names();

/// Every transport that reshard has or plans, built or not, in the order of the documentation.
/// Loads the modules, which has no side effects: no MPI_Init, no device, no output.
std::vector<TransportStatus> transports();

/// The transport of this name, or nothing. Loads only its modules.
std::optional<TransportStatus> find_transport(std::string_view name);

}  // namespace reshard
