// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes/shared_memory_names.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

namespace reshard::cli {

std::set<std::string> shared_memory_names(int pid) {
  namespace fs = std::filesystem;
  constexpr std::string_view kBeginning = "/dev/shm/ucx_shm_posix_";
  std::set<std::string> out;
  std::error_code error;
  for (fs::directory_iterator it(fmt::format("/proc/{}/fd", pid), error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    // An unlinked file reads "... (deleted)".
    const std::string path = fs::read_symlink(it->path(), gone).string();
    if (!gone && path.starts_with(kBeginning) && path.find(' ') == std::string::npos)
      out.insert(path);
  }
  return out;
}

}  // namespace reshard::cli
