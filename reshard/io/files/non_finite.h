// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace reshard::files {

/// A number that Python's json writes and JSON has no word for: NaN, Infinity or -Infinity.
struct NonFinite {
  std::size_t string = 0;  ///< the number of strings before it in the text.
  std::size_t byte = 0;
  std::string spelling;
};

/// Finds these numbers outside strings, in the order of the text, and makes `copy` the text with a
/// string of the same length in place of each; `copy` stays as it is if there are none. A word that
/// merely contains one is left to the parser, which refuses it. @pre `text` has no NUL
std::vector<NonFinite> replace_non_finite(std::string_view text, std::string& copy);

}  // namespace reshard::files
