// SPDX-License-Identifier: Apache-2.0
// Groups of ranks over the model of NVSHMEM.
#pragma once

#include <deque>
#include <vector>

#include "reshard/cuda/gpu_testutil.h"
#include "reshard/gpu_transport/nvshmem/nvshmem_model_testutil.h"
#include "reshard/gpu_transport/nvshmem/transport.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::nvshmem {

/// PEs whose ranks are objects of one thread, or run as threads.
class ModelGroup {
 public:
  explicit ModelGroup(const NvshmemModel::Options& options, std::size_t staging_bytes)
      : model_(options), staging_bytes_(staging_bytes) {
    for (int pe = 0; pe < options.pes; ++pe) worlds_.emplace_back(NvshmemModel::library());
  }

  NvshmemModel& model() { return model_; }
  Runtime& world(int pe) { return worlds_[static_cast<std::size_t>(pe)]; }

  /// Runs body(the ends of a new group's rank) as threads; rank i is PE pes[i].
  Result<> run(const std::vector<int>& pes, const RankBody& body) {
    InprocGroup group = RESHARD_TRY(InprocGroup::create(static_cast<int>(pes.size())));
    return run_ranks(static_cast<int>(pes.size()), [&](Rank rank) -> Result<> {
      const int pe = pes[static_cast<std::size_t>(rank.value())];
      const NvshmemModel::As as(model_, pe);
      RankEnds ends{RESHARD_TRY(group.control(rank)), nullptr};
      ends.transport = RESHARD_TRY(make_transport(world(pe), *ends.control, cuda::gpu_under_test(),
                                                  staging_bytes_, patient()));
      body(ends);
      return {};
    });
  }

  /// The ends of a new group of all PEs.
  std::vector<RankEnds> make_ranks() {
    std::vector<int> pes;
    for (std::size_t pe = 0; pe < worlds_.size(); ++pe) pes.push_back(static_cast<int>(pe));
    std::vector<RankEnds> out(pes.size());
    EXPECT_EQ(outcome(run(pes,
                          [&](RankEnds& ends) {
                            const auto rank = static_cast<std::size_t>(ends.rank().value());
                            out[rank] = std::move(ends);
                          })),
              "");
    return out;
  }

 private:
  NvshmemModel model_;
  std::deque<Runtime> worlds_;
  std::size_t staging_bytes_;
};

}  // namespace reshard::nvshmem
