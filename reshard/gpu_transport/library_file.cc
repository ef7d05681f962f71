// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/library_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "reshard/base/own_folders.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void* open(const char* file, int flags = 0) { return dlopen(file, RTLD_NOW | RTLD_LOCAL | flags); }

/// The folders that may have the wheel's library.
std::vector<fs::path> wheel_folders(const char* wheel) {
  std::vector<fs::path> packages;
  // An extension of Python lies in site-packages/reshard.
  for (const fs::path& folder : own_folders()) packages.push_back(folder.parent_path());
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const prefix = std::getenv(variable);
    if (prefix == nullptr || *prefix == '\0') continue;
    std::error_code failed;
    for (const auto& entry : fs::directory_iterator(fs::path(prefix) / "lib", failed))
      if (entry.path().filename().string().starts_with("python3"))
        packages.push_back(entry.path() / "site-packages");
  }
  for (fs::path& package : packages) package = package / "nvidia" / wheel / "lib";
  return packages;
}

}  // namespace

Result<void*> load_library_file(const LibraryFile& library) {
  if (void* const loaded = open(library.file, RTLD_NOLOAD)) return loaded;
  const char* const named = std::getenv(library.variable);
  if (named != nullptr && *named != '\0') {
    if (void* const found = open(named)) return found;
    return fail(Code::unsupported, fmt::format("{}: {}", library.variable, dlerror()));
  }
  if (void* const found = open(library.file)) return found;
  std::vector<std::string> looked;
  for (const fs::path& folder : wheel_folders(library.wheel)) {
    std::error_code failed;
    if (fs::exists(folder / library.file, failed))
      if (void* const found = open((folder / library.file).c_str())) return found;
    looked.push_back(folder.string());
  }
  return fail(
      Code::unsupported,
      fmt::format("no {}: {} is neither in this process nor among the system's libraries, {} is "
                  "not set, and no wheel has it in {}",
                  library.name, library.file, library.variable, fmt::join(looked, ", ")));
}

}  // namespace reshard
