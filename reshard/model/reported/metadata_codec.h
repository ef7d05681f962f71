// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "reshard/model/reported/gathered_metadata.h"

namespace reshard {

/// The version that encode_metadata writes; decode_metadata reads it and no other.
inline constexpr int kMetadataVersion = 1;

/// The compact binary form: a table of names (sorted, each with the length it shares with the one
/// before), of groups, of what parameters are like but for their name, of templates, then the
/// ranks. Equal metadata give equal bytes on every machine.
std::vector<std::byte> encode_metadata(const GatheredMetadata& all);

/// The metadata of bytes that any peer may have sent. Errors are Code::corrupt and say at which
/// byte, or which parameter, what is wrong; the invariants of GatheredMetadata hold afterwards.
/// Memory used: at most about 1 GiB, whatever the bytes say.
Result<GatheredMetadata> decode_metadata(std::span<const std::byte> bytes);

}  // namespace reshard
