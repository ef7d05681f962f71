// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string_view>

#include "reshard/base/result.h"

namespace reshard::dcp {

/// The entries of a zip archive by name; both are borrowed from the archive.
using ZipEntries = std::map<std::string_view, std::span<const std::byte>>;

/// Lists the entries of an archive, which must fill `archive`. Sizes may have 64 bits. Checksums
/// are not compared, because torch may leave them out. Errors: no archive; a compressed or
/// encrypted entry; an entry that reaches past the end; two entries of one name, of which readers
/// take different ones.
Result<ZipEntries> zip_entries(std::span<const std::byte> archive);

}  // namespace reshard::dcp
