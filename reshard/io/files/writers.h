// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace reshard {

/// True if a process has the file open for writing, or mapped so. Only then can its content change
/// later without a new stamp: through pages that are dirty already, or by a write that began
/// before. False also where the system does not tell: another user's file, and file systems without
/// leases (NFS).
bool is_open_for_writing(const std::string& path);

}  // namespace reshard
