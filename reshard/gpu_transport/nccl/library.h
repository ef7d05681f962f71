// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's API that reshard calls. The library is loaded at run time, so no header or
// library of NCCL is needed to build, and a process has only one copy of it.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "reshard/base/result.h"
#include "reshard/cuda/driver.h"

// The type that NCCL declares behind ncclComm_t.
struct ncclComm;

namespace reshard::nccl {

using Comm = ncclComm*;

/// ncclResult_t: the codes that reshard tells apart.
enum Status : int { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7 };
/// ncclDataType_t.
inline constexpr int kBytes = 0;  // ncclInt8

/// ncclUniqueId, which is passed by value.
struct UniqueId {
  char internal[128] = {};
};

/// ncclConfig_t as of NCCL 2.18. The library reads `size` bytes of it and takes its own defaults
/// for members that came later than `version`; members are only ever appended.
struct Config {
  static constexpr int kUndefined = std::numeric_limits<int>::min();
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int later_member = kUndefined;  ///< is padding in 2.18, and a member since 2.25.
};
static_assert(sizeof(Config) == 48);

/// The oldest version whose ncclConfig_t has the members above, as ncclGetVersion() counts.
inline constexpr int kOldestVersion = 21800;

/// The functions, as <nccl.h> declares them. A test gives its own.
struct Nccl {
  int version = 0;   ///< 22703 is 2.27.3.
  std::string path;  ///< of the library.
  int (*ncclGetVersion)(int* version) = nullptr;
  int (*ncclGetUniqueId)(UniqueId* id) = nullptr;
  int (*ncclCommInitRankConfig)(Comm* comm, int ranks, UniqueId id, int rank,
                                Config* config) = nullptr;
  int (*ncclCommFinalize)(Comm comm) = nullptr;
  int (*ncclCommDestroy)(Comm comm) = nullptr;
  int (*ncclCommAbort)(Comm comm) = nullptr;
  int (*ncclCommGetAsyncError)(Comm comm, int* status) = nullptr;
  const char* (*ncclGetErrorString)(int status) = nullptr;
  const char* (*ncclGetLastError)(Comm comm) = nullptr;
  int (*ncclGroupStart)() = nullptr;
  int (*ncclGroupEnd)() = nullptr;
  int (*ncclSend)(const void* at, std::size_t count, int type, int peer, Comm comm,
                  cuda::StreamHandle stream) = nullptr;
  int (*ncclRecv)(void* at, std::size_t count, int type, int peer, Comm comm,
                  cuda::StreamHandle stream) = nullptr;
};

/// Loads NCCL, once per process; later calls return the same. Takes the libnccl.so.2 that the
/// process has loaded already (torch's); else the file $RESHARD_NCCL_LIBRARY; else the system's;
/// else that of the wheel nvidia-nccl-cu13 or -cu12 beside this package, in $VIRTUAL_ENV or in
/// $CONDA_PREFIX. Errors: `unsupported` if there is none (says where it looked), the file that the
/// variable names does not load, or the library is too old or lacks a function (named).
Result<const Nccl*> load_nccl();

/// "NCCL 2.27.3".
std::string name_of_version(int version);

/// Success, also for work in progress; or an error with NCCL's text, and what it last reported for
/// `comm` (may be null). `what` names the call and what it was for.
Result<> check(const Nccl& nccl, int status, Comm comm, const char* what);

}  // namespace reshard::nccl
