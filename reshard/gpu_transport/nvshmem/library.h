// SPDX-License-Identifier: Apache-2.0
// The part of NVSHMEM's host library that reshard calls. It is loaded at run time, so one build
// serves machines with and without it, and no header of NVSHMEM is needed to compile it. Functions
// that its headers define inline are not used; nothing here is linked into device code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "reshard/base/result.h"
#include "reshard/cuda/driver.h"

namespace reshard::nvshmem {

/// nvshmemx_uniqueid_t.
struct UniqueId {
  int version = (1 << 16) + 128;
  char internal[124] = {};
};
static_assert(sizeof(UniqueId) == 128);

/// nvshmemx_init_attr_t with its two parts, in their first version, which every release of NVSHMEM
/// 3 takes. The GPU is then that of the current context.
struct InitAttributes {
  struct IdArguments {
    int version = (1 << 16) + 24;
    const UniqueId* id = nullptr;
    int rank = -1, ranks = -1;
  };
  struct Arguments {
    int version = (1 << 16) + 128;
    IdArguments id;
    char unused[96] = {};
  };
  int version = (1 << 16) + 144;
  void* mpi_communicator = nullptr;
  Arguments arguments;
};
static_assert(sizeof(InitAttributes::IdArguments) == 24);
static_assert(sizeof(InitAttributes::Arguments) == 128);
static_assert(sizeof(InitAttributes) == 144);

/// Values of NVSHMEM's constants.
inline constexpr unsigned kInitWithUniqueId = 1 << 3;
inline constexpr int kSignalSet = 9, kCompareEqual = 0;
/// nvshmemx_init_status(). Limited: PEs share a GPU without MPS, and waits on streams would end the
/// process.
inline constexpr int kNotInitialized = 0, kBootstrapped = 1, kLimitedSharing = 3;

/// The functions, as NVSHMEM's headers declare them; all are set. A test gives its own. Wherever
/// memory is passed with a PE, it is an address in the symmetric heap of the caller, and means the
/// same place in that PE's. They need the context of the GPU to be current. Most errors of
/// NVSHMEM's own end the process.
struct Library {
  void (*nvshmemx_vendor_get_version_info)(int* major, int* minor, int* patch) = nullptr;
  int (*nvshmemx_init_status)() = nullptr;
  int (*nvshmemx_get_uniqueid)(UniqueId* id) = nullptr;
  int (*nvshmemx_set_attr_uniqueid_args)(int rank, int ranks, const UniqueId* id,
                                         InitAttributes* attributes) = nullptr;
  int (*nvshmemx_hostlib_init_attr)(unsigned flags, InitAttributes* attributes) = nullptr;
  int (*nvshmem_my_pe)() = nullptr;
  void* (*nvshmem_malloc)(std::size_t bytes) = nullptr;
  void* (*nvshmem_ptr)(const void* at, int pe) = nullptr;
  void (*nvshmemx_putmem_signal_on_stream)(void* to, const void* from, std::size_t bytes,
                                           std::uint64_t* signal, std::uint64_t value,
                                           int operation, int pe, cuda::StreamHandle) = nullptr;
  void (*nvshmemx_signal_op_on_stream)(std::uint64_t* signal, std::uint64_t value, int operation,
                                       int pe, cuda::StreamHandle) = nullptr;
  void (*nvshmemx_signal_wait_until_on_stream)(std::uint64_t* signal, int comparison,
                                               std::uint64_t value, cuda::StreamHandle) = nullptr;
  void (*nvshmemx_quiet_on_stream)(cuda::StreamHandle) = nullptr;
};

/// Finds libnvshmem_host.so.3, once per process: the one that the process has loaded already, that
/// of RESHARD_NVSHMEM_LIBRARY (a path), the system's, that of NVIDIA's wheel beside this program or
/// in the Python environment. Has no side effects beyond loading it. Errors: `unsupported` if there
/// is none (says where it looked), or it lacks a function (named).
Result<const Library*> load_library();

/// "NVSHMEM 3.8.0".
std::string version_of(const Library& library);

}  // namespace reshard::nvshmem
