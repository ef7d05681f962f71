// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nvshmem/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "reshard/gpu_transport/library_file.h"

namespace reshard::nvshmem {
namespace {

constexpr LibraryFile kFile{"NVSHMEM", "libnvshmem_host.so.3", "RESHARD_NVSHMEM_LIBRARY",
                            "nvshmem"};

Result<Library> load() {
  const LoadedLibrary loaded = RESHARD_TRY(load_library_file(kFile));
  const char* missing = nullptr;
  const auto find = [&]<class F>(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(loaded.handle, symbol));
    if (function == nullptr && missing == nullptr) missing = symbol;
  };
  Library l;
  find(l.nvshmemx_vendor_get_version_info, "nvshmemx_vendor_get_version_info");
  find(l.nvshmemx_init_status, "nvshmemx_init_status");
  find(l.nvshmemx_get_uniqueid, "nvshmemx_get_uniqueid");
  find(l.nvshmemx_set_attr_uniqueid_args, "nvshmemx_set_attr_uniqueid_args");
  find(l.nvshmemx_hostlib_init_attr, "nvshmemx_hostlib_init_attr");
  find(l.nvshmem_my_pe, "nvshmem_my_pe");
  find(l.nvshmem_malloc, "nvshmem_malloc");
  find(l.nvshmem_ptr, "nvshmem_ptr");
  find(l.nvshmemx_putmem_signal_on_stream, "nvshmemx_putmem_signal_on_stream");
  find(l.nvshmemx_signal_op_on_stream, "nvshmemx_signal_op_on_stream");
  find(l.nvshmemx_signal_wait_until_on_stream, "nvshmemx_signal_wait_until_on_stream");
  find(l.nvshmemx_quiet_on_stream, "nvshmemx_quiet_on_stream");
  if (missing != nullptr)
    return fail(Code::unsupported,
                fmt::format("NVSHMEM is too old: {} lacks {}", loaded.file, missing));
  return l;
}

}  // namespace

Result<const Library*> load_library() {
  static const Result<Library> library = load();
  if (!library) return tl::unexpected(library.error());
  return &*library;
}

std::string version_of(const Library& library) {
  int major = 0, minor = 0, patch = 0;
  library.nvshmemx_vendor_get_version_info(&major, &minor, &patch);
  return fmt::format("NVSHMEM {}.{}.{}", major, minor, patch);
}

}  // namespace reshard::nvshmem
