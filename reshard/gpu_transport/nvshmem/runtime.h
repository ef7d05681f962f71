// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "reshard/gpu_transport/nvshmem/exchanger.h"
#include "reshard/transport/control.h"

namespace reshard::nvshmem {

/// Collective. Succeeds if `mine` is a success on all ranks; otherwise all get the error of the
/// first rank that has one. Errors: also those of the control plane.
Result<> agree(ControlPlane& control, const Result<>& mine, Deadline deadline);

/// NVSHMEM in this process. NVSHMEM has one world of PEs per process, which cannot grow: the first
/// group starts it, with one PE for each rank, and later groups, one at a time, consist of some or
/// all of the same processes. It never ends: nvshmem_finalize() waits for all PEs, also for dead
/// ones, and every process ends without it.
///
/// enter() and leave() are for one thread at a time.
class Runtime {
 public:
  /// `library` must outlive it.
  explicit Runtime(const Library& library) : library_(library) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The world that load_library() has in this process.
  static Runtime& of_process(const Library& library);

  /// Collective: joins the group of `control` with the GPU of this rank. A new world allocates at
  /// most `staging_bytes` of symmetric memory; all ranks must give the same number. When it
  /// returns, the words of this rank are zero; a rank may put only after it knows that those of all
  /// others are, such as from agree().
  ///
  /// Errors: `unsupported` if a rank is in another world or in a group already, a group has other
  /// processes than the world, this process has started NVSHMEM otherwise, or an earlier group left
  /// work behind; `invalid_argument` for different or too few staging bytes; `io` if NVSHMEM fails;
  /// `deadline`. If the start of NVSHMEM does not end by the deadline, it goes on in a thread that
  /// cannot be stopped, and this process has no NVSHMEM any more.
  Result<Membership> enter(ControlPlane& control, const std::shared_ptr<const cuda::Device>& device,
                           std::size_t staging_bytes, Deadline deadline);

  /// Ends the group. `drained`: none of its work may still run; otherwise no later group is let in.
  void leave(bool drained);

 private:
  struct Start;

  Result<> check_free(const cuda::Device& device) const;
  Result<> start(ControlPlane& control, const std::shared_ptr<const cuda::Device>& device,
                 std::size_t staging_bytes, Deadline deadline);
  Result<> wait_for(ControlPlane& control, Start& start, Deadline deadline);

  const Library& library_;
  std::shared_ptr<const cuda::Device> device_;
  std::uint64_t id_ = 0;  ///< 0: not started.
  std::uint64_t groups_ = 0;
  std::string broken_;  ///< why no group is let in, or "".
  bool in_group_ = false, waits_ = false;
  int pe_ = -1;
  std::byte* base_ = nullptr;
  std::optional<Staging> staging_;
};

}  // namespace reshard::nvshmem
