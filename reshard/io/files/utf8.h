// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace reshard::files {

/// The index of the first byte that is not part of valid UTF-8 (no surrogates, no overlong forms,
/// at most U+10FFFF), or none.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// At most the first `bytes` bytes of `text`, cut between characters.
std::string cut_utf8(std::string_view text, std::size_t bytes);

}  // namespace reshard::files
