// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "reshard/base/own_folders.h"

namespace reshard::nccl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libnccl.so.2";
constexpr const char* kVariable = "RESHARD_NCCL_LIBRARY";

/// Finds functions, and remembers the first that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}

  template <class F>
  void find(F*& function, const char* symbol) {
    find_optional(function, symbol);
    if (function == nullptr && missing_ == nullptr) missing_ = symbol;
  }
  template <class F>
  void find_optional(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(library_, symbol));
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

/// The file of a function in a library.
std::string file_of(const void* function) {
  Dl_info found{};
  return dladdr(function, &found) != 0 && found.dli_fname != nullptr ? found.dli_fname : kFile;
}

Result<Nccl> functions_of(void* library, const std::string& file) {
  Nccl n;
  n.path = file;
  Finder finder(library);
  finder.find(n.ncclGetVersion, "ncclGetVersion");
  finder.find(n.ncclGetUniqueId, "ncclGetUniqueId");
  finder.find(n.ncclCommInitRankConfig, "ncclCommInitRankConfig");
  finder.find(n.ncclCommFinalize, "ncclCommFinalize");
  finder.find(n.ncclCommDestroy, "ncclCommDestroy");
  finder.find(n.ncclCommAbort, "ncclCommAbort");
  finder.find(n.ncclCommGetAsyncError, "ncclCommGetAsyncError");
  finder.find(n.ncclGetErrorString, "ncclGetErrorString");
  finder.find(n.ncclGetLastError, "ncclGetLastError");
  finder.find(n.ncclGroupStart, "ncclGroupStart");
  finder.find(n.ncclGroupEnd, "ncclGroupEnd");
  finder.find(n.ncclSend, "ncclSend");
  finder.find(n.ncclRecv, "ncclRecv");
  finder.find_optional(n.ncclCommRegister, "ncclCommRegister");
  finder.find_optional(n.ncclCommDeregister, "ncclCommDeregister");
  if (n.ncclGetVersion != nullptr) {
    n.path = file_of(reinterpret_cast<const void*>(n.ncclGetVersion));
    const int status = n.ncclGetVersion(&n.version);
    if (status != kSuccess || n.version < kOldestVersion)
      return fail(Code::unsupported,
                  fmt::format("NCCL is too old: {} has version {}, at least {} is needed", n.path,
                              n.version, kOldestVersion));
  }
  if (finder.missing() != nullptr)
    return fail(Code::unsupported,
                fmt::format("NCCL is too old: {} lacks {}", n.path, finder.missing()));
  return n;
}

/// The folders that may have the wheel's library.
std::vector<fs::path> wheel_folders() {
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
  std::vector<fs::path> out;
  for (const fs::path& package : packages)
    if (const fs::path folder = package / "nvidia" / "nccl" / "lib";
        std::ranges::find(out, folder) == out.end())
      out.push_back(folder);
  return out;
}

/// Never closed: the library has threads of its own.
void* open(const char* file, int flags = 0) { return dlopen(file, RTLD_NOW | RTLD_LOCAL | flags); }

Result<Nccl> load() {
  if (void* const loaded = open(kFile, RTLD_NOLOAD)) return functions_of(loaded, kFile);
  const char* const named = std::getenv(kVariable);
  if (named != nullptr && *named != '\0') {
    if (void* const library = open(named)) return functions_of(library, named);
    return fail(Code::unsupported, fmt::format("{}: {}", kVariable, dlerror()));
  }
  if (void* const library = open(kFile)) return functions_of(library, kFile);
  std::vector<std::string> looked;
  for (const fs::path& folder : wheel_folders()) {
    const std::string file = folder / kFile;
    std::error_code failed;
    if (fs::exists(file, failed))
      if (void* const library = open(file.c_str())) return functions_of(library, file);
    looked.push_back(folder.string());
  }
  return fail(
      Code::unsupported,
      fmt::format("no NCCL: {} is neither in this process nor among the system's libraries, "
                  "{} is not set, and no wheel has it in {}",
                  kFile, kVariable, fmt::join(looked, ", ")));
}

}  // namespace

std::string name_of_version(int version) {
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Result<const Nccl*> load_nccl() {
  static const Result<Nccl> nccl = load();
  if (!nccl) return tl::unexpected(nccl.error());
  return &*nccl;
}

Result<> check(const Nccl& nccl, int status, Comm comm, const char* what) {
  if (status == kSuccess || status == kInProgress) return {};
  const char* const text = nccl.ncclGetErrorString(status);
  const char* const last = nccl.ncclGetLastError(comm);
  const bool says_more = last != nullptr && *last != '\0';
  const Code code =
      status == kInvalidArgument || status == kInvalidUsage ? Code::unsupported : Code::aborted;
  return fail(code, fmt::format("nccl: {}: {}{}{}", what, text != nullptr ? text : "unknown error",
                                says_more ? ": " : "", says_more ? last : ""));
}

}  // namespace reshard::nccl
