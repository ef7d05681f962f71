// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace reshard {

/// What this build knows of one transport. All text is static.
struct TransportInfo {
  std::string_view name;  ///< as users write it, and Transport::name().
  bool built;             ///< its code is in this build.
  bool available;         ///< it can make a group here and now. Implies built.
  /// Of the library underneath, or of the backend when it has none; empty when not built.
  std::string_view version;
  std::string_view reason;   ///< why it is not available; empty when it is.
  std::string_view purpose;  ///< what it is for, in one line.
};

/// Every transport that reshard has or plans, built or not, in the order of the documentation.
std::span<const TransportInfo> transports();

/// The row of this name, or null.
const TransportInfo* find_transport(std::string_view name);

}  // namespace reshard
