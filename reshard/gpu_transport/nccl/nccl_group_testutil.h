// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that are threads, each with an emulated GPU, over the model of NCCL.
#pragma once

#include <memory>
#include <utility>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/gpu_transport/nccl/nccl_model_testutil.h"
#include "reshard/gpu_transport/nccl/transport.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::nccl {

/// The emulated GPU of a rank.
inline std::shared_ptr<const cuda::Device> gpu_of_rank(Rank rank) {
  cuda::set_emulated_devices(16);
  return *cuda::Device::open(cuda::emulated_driver(), rank.value());
}

/// Limits for which a group is made quickly.
inline GroupLimits little_staging() {
  return {.segment_bytes = std::size_t{1} << 20, .host_bytes = std::size_t{1} << 20};
}

/// The control plane and the transport of a rank of `group`.
inline Result<RankEnds> ends_of(InprocGroup& group, Rank rank,
                                const GroupLimits& limits = little_staging(),
                                std::shared_ptr<const cuda::Device> gpu = nullptr) {
  RankEnds ends{RESHARD_TRY(group.control(rank)), nullptr};
  if (gpu == nullptr) gpu = gpu_of_rank(rank);
  ends.transport = RESHARD_TRY(make_transport(*ends.control, model_nccl(), gpu, patient(), limits));
  return ends;
}

/// Runs a body on each of n ranks; as TransportUnderTest::run. `one_gpu`: of all ranks, which only
/// the model allows; null: each has its own.
inline Result<> run_nccl_ranks(int n, const RankBody& body,
                               const GroupLimits& limits = little_staging(),
                               std::shared_ptr<const cuda::Device> one_gpu = nullptr) {
  InprocGroup group = RESHARD_TRY(InprocGroup::create(n));
  cuda::set_emulated_devices(16);
  return run_ranks(n, [&](Rank rank) -> Result<> {
    RankEnds ends = RESHARD_TRY(ends_of(group, rank, limits, one_gpu));
    // A body may abort the group, which a rank that is still joining would notice.
    RESHARD_TRY(ends.control->barrier(patient()));
    body(ends);
    return {};
  });
}

}  // namespace reshard::nccl
