// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/model/families/explicit.h"

/// Layout files: any layout as JSON, tensor by tensor. docs/tracing.md describes every key.
namespace reshard {

/// The largest layout file.
inline constexpr std::size_t kMaxLayoutFile = std::size_t{64} << 20;

/// Parses and checks a layout: tensors as ModelSpec::add() and check_explicit() accept them, ranks
/// below kMaxExplicitRanks. Errors are Code::corrupt, or Code::unsupported for another version, and
/// name the entry (counted from 1) and the key, but not the file.
Result<ExplicitLayout> parse_layout_file(std::string_view text);

/// parse_layout_file() of a file of at most kMaxLayoutFile bytes. Errors begin with its path.
Result<ExplicitLayout> read_layout_file(const std::string& path);

/// The text of such a file. Equal layouts give equal texts.
std::string layout_file_text(const ExplicitLayout& layout);

/// Writes a layout to a new file that `explicit:PATH` reads. Errors: the file exists, the disk,
/// more than kMaxLayoutFile bytes.
Result<> write_layout_file(const std::string& path, const ModelLayout& layout);

}  // namespace reshard
