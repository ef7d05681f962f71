// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// What this build and this machine know of one transport.
struct TransportInfo {
  std::string_view name;   ///< as users write it, and Transport::name(). Static.
  bool built = false;      ///< its code is in this build.
  bool available = false;  ///< it can make a group here and now. Implies built.
  /// Of the library underneath (of all, where there are several), or of the backend when it has
  /// none; empty when it is not built, or its library cannot be asked.
  std::string version;
  std::string reason;        ///< why it is not available; empty when it is.
  std::string_view purpose;  ///< what it is for, in one line. Static.
};

/// The names of all transports, in the order of the documentation. Loads nothing.
std::vector<std::string_view> transport_names();

/// Every transport that reshard has or plans, built or not, in the order of the documentation.
/// Loads the modules to ask them, which starts nothing: no MPI_Init, no device, no output.
std::vector<TransportInfo> transports();

/// The row of this name, or nothing. Loads only that transport's modules.
std::optional<TransportInfo> find_transport(std::string_view name);

}  // namespace reshard
