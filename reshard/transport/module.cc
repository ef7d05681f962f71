// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>

#include "reshard/base/install_dirs.h"
#include "reshard/transport/built_modules.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The MPI module for the launcher that started this process, or "".
std::string_view module_of_launcher() {
  if (std::getenv("OMPI_COMM_WORLD_RANK") || std::getenv("PMIX_RANK")) return "mpi_openmpi";
  if (std::getenv("PMI_RANK")) return "mpi_mpich";
  return "";
}

/// The modules for a name, best first: "mpi" has several, every other name has one.
std::vector<const BuiltModule*> modules_of(std::string_view name) {
  std::vector<const BuiltModule*> out;
  for (const BuiltModule& m : built_modules())
    if (m.name == name || m.transport == name) out.push_back(&m);
  if (name != "mpi") return out;
  const std::string_view only = module_of_launcher();
  if (only.empty()) return out;
  // The other library would not find its launcher, and every process would be a world of its own.
  std::erase_if(out, [&](const BuiltModule* m) { return m->name != only; });
  return out;
}

std::vector<fs::path> folders() {
  std::vector<fs::path> out;
  if (const char* folder = std::getenv("RESHARD_MODULES"); folder != nullptr && *folder != '\0')
    out.emplace_back(folder);
  for (const fs::path& folder : install_dirs()) {
    out.push_back(folder);
    out.push_back(folder / "reshard");
    out.push_back(folder.parent_path() / "lib" / "reshard");
  }
  return out;
}

tl::unexpected<Error> unsupported(std::string why) {
  return fail(Code::unsupported, std::move(why));
}

Result<const TransportModule*> load_file(const fs::path& file) {
  // Loading a file again returns the same handle. Modules are never unloaded, because their
  // libraries leave threads and exit handlers behind.
  void* handle = dlopen(fs::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* words = dlerror();
    return unsupported(
        fmt::format("its module does not load: {}", words != nullptr ? words : "unknown reason"));
  }
  using Entry = const TransportModule* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, kModuleSymbol));
  if (entry == nullptr) {
    return unsupported(fmt::format("{} is not a transport module: it has no symbol {}",
                                   file.string(), kModuleSymbol));
  }
  const TransportModule* module = entry();
  if (module == nullptr || module->abi != kModuleAbi) {
    return unsupported(fmt::format(
        "{} has interface version {}, but this program has {}; build both from the same "
        "sources",
        file.string(), module == nullptr ? 0 : module->abi, kModuleAbi));
  }
  return module;
}

Result<const TransportModule*> load_one(const BuiltModule& m) {
  const std::string file = fmt::format("reshard_transport_{}.so", m.name);
  const std::vector<fs::path> where = folders();
  for (const fs::path& folder : where) {
    std::error_code failed;
    if (fs::exists(folder / file, failed)) return load_file(folder / file);
  }
  if (!m.built) return unsupported(std::string(m.missing));
  std::vector<std::string> names;
  for (const fs::path& folder : where) names.push_back(folder.string());
  return unsupported(
      fmt::format("its module {} is not in {}; set RESHARD_MODULES to "
                  "the folder that has it",
                  file, fmt::join(names, ", ")));
}

}  // namespace

Result<const TransportModule*> load_module(std::string_view name) {
  const std::vector<const BuiltModule*> candidates = modules_of(name);
  if (candidates.empty()) return unsupported("there is no module of this name");
  Error first;
  for (const BuiltModule* m : candidates) {
    Result<const TransportModule*> module = load_one(*m);
    if (module) return module;
    // An error of a module that was built is more useful.
    if (first.message.empty() || m->built) first = std::move(module).error();
    if (m->built) break;
  }
  return tl::unexpected(std::move(first));
}

}  // namespace reshard
