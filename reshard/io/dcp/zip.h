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

/// Lists an archive that fills `archive` and whose entries are stored as they are, with sizes of up
/// to 64 bits. Checksums are not computed: torch writes archives without them, too. Errors: no
/// archive; compressed or encrypted entries; entries beyond its end.
Result<ZipEntries> zip_entries(std::span<const std::byte> archive);

}  // namespace reshard::dcp
