// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/library_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "reshard/base/install_dirs.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void* open(const char* file, int flags = 0) { return dlopen(file, RTLD_NOW | RTLD_LOCAL | flags); }

/// The folders that may have the wheel's library.
std::vector<fs::path> wheel_folders(const char* wheel) {
  std::vector<fs::path> packages;
  // An extension of Python lies in site-packages/reshard.
  for (const fs::path& folder : install_dirs()) packages.push_back(folder.parent_path());
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const prefix = std::getenv(variable);
    if (prefix == nullptr || *prefix == '\0') continue;
    std::error_code failed;
    for (fs::directory_iterator entry(fs::path(prefix) / "lib", failed), end;
         entry != end && !failed; entry.increment(failed))
      if (entry->path().filename().string().starts_with("python3"))
        packages.push_back(entry->path() / "site-packages");
  }
  std::vector<fs::path> out;
  for (const fs::path& package : packages)
    if (const fs::path folder = package / "nvidia" / wheel / "lib";
        std::ranges::find(out, folder) == out.end())
      out.push_back(folder);
  return out;
}

}  // namespace

Result<LoadedLibrary> load_library_file(const LibraryFile& library) {
  if (void* const loaded = open(library.file, RTLD_NOLOAD))
    return LoadedLibrary{loaded, library.file};
  const char* const named = std::getenv(library.variable);
  if (named != nullptr && *named != '\0') {
    if (void* const found = open(named)) return LoadedLibrary{found, named};
    return fail(Code::unsupported, fmt::format("{}: {}", library.variable, dlerror()));
  }
  if (void* const found = open(library.file)) return LoadedLibrary{found, library.file};
  std::vector<std::string> looked;
  for (const fs::path& folder : wheel_folders(library.wheel)) {
    const std::string file = folder / library.file;
    std::error_code failed;
    if (fs::exists(file, failed))
      if (void* const found = open(file.c_str())) return LoadedLibrary{found, file};
    looked.push_back(folder.string());
  }
  return fail(
      Code::unsupported,
      fmt::format("no {}: {} is neither in this process nor among the system's libraries, {} is "
                  "not set, and no wheel has it in {}",
                  library.name, library.file, library.variable, fmt::join(looked, ", ")));
}

}  // namespace reshard
