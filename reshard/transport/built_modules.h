// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace reshard {

/// What the build decided about one loadable module. All text is static.
struct BuiltModule {
  std::string_view transport;  ///< which transport it is: "mpi".
  std::string_view name;       ///< of the file reshard_transport_NAME.so: "mpi_mpich".
  bool built;
  /// When it is not built: why, and what would bring it.
  std::string_view missing;
};

/// Every module that the sources have, in the order of preference. Written by
/// cmake/transports.cmake for each build.
std::span<const BuiltModule> built_modules();

}  // namespace reshard
