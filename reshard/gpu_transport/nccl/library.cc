// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "reshard/cuda/driver.h"
#include "reshard/gpu_transport/library_file.h"

namespace reshard::nccl {
namespace {

constexpr LibraryFile kLibrary{"NCCL", "libnccl.so.2", "RESHARD_NCCL_LIBRARY", "nccl"};

/// Finds functions, and remembers the first that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}

  template <class F>
  void find(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(library_, symbol));
    if (function == nullptr && missing_ == nullptr) missing_ = symbol;
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

/// The file of a function in a library.
std::string file_of(const void* function) {
  Dl_info found{};
  return dladdr(function, &found) != 0 && found.dli_fname != nullptr ? found.dli_fname
                                                                     : kLibrary.file;
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

Result<Nccl> load() {
  const LoadedLibrary loaded = RESHARD_TRY(load_library_file(kLibrary));
  return functions_of(loaded.handle, loaded.file);
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
