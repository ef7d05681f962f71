// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace reshard::cli::doctor {

/// An environment variable that reshard reads, in the program, the library or the package.
struct Variable {
  enum class Of : std::uint8_t {
    reshard,   ///< set by users for reshard.
    system,    ///< set by users for all programs.
    launcher,  ///< set by what starts the ranks.
    library,   ///< read by a library that reshard loads; reshard looks whether it is set.
    internal,  ///< set by reshard for its own processes, and by its tests.
  };
  std::string_view name;
  Of of = Of::reshard;
  std::string_view help;     ///< its meaning, and the default.
  std::string_view choices;  ///< the values, between ", "; empty: any.
};

/// All of them, by kind and then by name.
std::span<const Variable> environment_variables();

/// "for reshard", "of the system", ...
std::string_view name(Variable::Of of);

}  // namespace reshard::cli::doctor
