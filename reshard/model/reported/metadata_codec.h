// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "reshard/model/reported/gathered_metadata.h"

namespace reshard {

/// The format version; decode_metadata accepts no other.
inline constexpr int kMetadataVersion = 1;

/// Encodes metadata compactly: tables of names (sorted, with the prefix length shared with the
/// previous one), of groups, of parameter attributes without names, and of templates, then the
/// ranks. Equal metadata give equal bytes on every machine.
std::vector<std::byte> encode_metadata(const GatheredMetadata& all);

/// Decodes untrusted bytes. Errors are Code::corrupt and name the byte or parameter that is wrong.
/// The result satisfies the invariants of GatheredMetadata. Uses at most about 1 GiB of memory,
/// whatever the input.
Result<GatheredMetadata> decode_metadata(std::span<const std::byte> bytes);

}  // namespace reshard
