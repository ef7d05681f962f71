// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/install_dirs.h"

#include <dlfcn.h>

namespace reshard {

std::vector<std::filesystem::path> install_dirs() {
  namespace fs = std::filesystem;
  std::vector<fs::path> found;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (!failed) found.push_back(program.parent_path());
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&install_dirs), &here) == 0 || here.dli_fname == nullptr)
    return found;
  const fs::path library = fs::canonical(here.dli_fname, failed);
  if (!failed && library != program) found.push_back(library.parent_path());
  return found;
}

}  // namespace reshard
