// SPDX-License-Identifier: Apache-2.0
// One rank of a refit that has only its own memory: what it does, and how. Ranks may be threads or
// processes.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/cuda/gpu_testutil.h"
#include "reshard/exec/device/device_tensors.h"
#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/exec/value_oracle_testutil.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

/// Two layouts of one model, and how many ranks run the refit.
struct RefitLayouts {
  std::string name;
  ModelConfig config;
  std::string from, to;
  int ranks = 1;
};
inline std::ostream& operator<<(std::ostream& out, const RefitLayouts& l) { return out << l.name; }

/// One way to run it.
struct RefitWay {
  std::string name;
  Limit limit = Limit::none;
  RefitPath path = RefitPath::automatic;
  Index staging_bytes = Index{64} << 20, in_place_bytes = Index{64} << 10;
  std::string_view takes = "";  ///< the path that must be taken; "": whichever.
  bool shared = false;          ///< buffers that other processes can map.
  std::function<void()> before_run = {};
  int hosts = 1;  ///< of the group; memory of other hosts cannot be opened.
  /// Ranks whose source, and whose target, is in the memory of a GPU. Null: none.
  bool (*gpu_source)(Rank) = nullptr, (*gpu_target)(Rank) = nullptr;
};
inline std::ostream& operator<<(std::ostream& out, const RefitWay& w) { return out << w.name; }

/// One side of a rank, with a copy in the memory of a GPU if refits use that.
class RefitRankSide {
 public:
  RefitRankSide(RankBuffers memory, bool on_gpu) : host(std::move(memory)) {
    if (on_gpu && !host.ranks().empty())
      gpu_ = DeviceTensors::allocate(host.shared_layout(), host.ranks(), cuda::gpu_under_test())
                 .value();
  }

  /// The buffers that refits get; null if the rank holds nothing of the side.
  const RankBuffers* buffers() const {
    if (host.ranks().empty()) return nullptr;
    return gpu_ ? &gpu_->buffers() : &host;
  }
  /// Gives the GPU's default stream a copy of `host`, and does not wait for it.
  Result<> write() const { return gpu_ ? gpu_->copy_from(host, stream()) : Result<>(); }
  /// Makes `host` what the GPU has.
  Result<> read() const {
    if (!gpu_) return {};
    RESHARD_TRY(gpu_->copy_to(host, stream()));
    return stream().synchronize();
  }

  RankBuffers host;

 private:
  cuda::Stream stream() const { return cuda::Stream::borrow(gpu_->buffers().device(), nullptr); }

  std::optional<DeviceTensors> gpu_;
};

/// One rank's own memory, and its transport with limited capabilities.
struct RefitRank {
  RefitRankSide source, target;
  LimitedTransport transport;

  /// Takes the transport of `ends`.
  RefitRank(RankEnds& ends, const Planner& planner, const RefitWay& way)
      : source(mine(planner.shared_source(), ends.rank(), way, way.gpu_source)),
        target(mine(planner.shared_target(), ends.rank(), way, way.gpu_target)),
        transport(std::move(ends.transport), way.limit, way.hosts) {}

  /// Collective. A refit of this memory, which has to outlive it.
  Result<RankRefit> prepare(const Planner& planner, ControlPlane& control, const RefitWay& way) {
    RankRefitOptions options;
    options.path = way.path;
    options.staging_bytes = way.staging_bytes;
    options.in_place_bytes = way.in_place_bytes;
    return RankRefit::prepare(planner, source.buffers(), target.buffers(), transport, control,
                              options);
  }

 private:
  static RefitRankSide mine(const std::shared_ptr<const ModelLayout>& layout, Rank me,
                            const RefitWay& way, bool (*on_gpu)(Rank)) {
    const std::vector<Rank> ranks(layout->ranks().contains(me) ? 1 : 0, me);
    return {*RankBuffers::allocate(layout, ranks, {.shared = way.shared}),
            on_gpu != nullptr && on_gpu(me)};
  }
};

/// One rank: a refit with its own memory only, twice, each time into zeros. Expects every element
/// in place, the expected path, and staging below its cap.
inline Result<> refit_as_rank(RankEnds& ends, const Planner& planner, const RefitWay& way) {
  const Rank me = ends.rank();
  RefitRank mine(ends, planner, way);
  const RankBuffers& target = mine.target.host;
  fill_values(mine.source.host);
  RESHARD_TRY(mine.source.write());
  RankRefit refit = RESHARD_TRY(mine.prepare(planner, *ends.control, way));
  if (!way.takes.empty()) {
    EXPECT_EQ(refit.path(), way.takes) << refit.reason();
  }
  EXPECT_LE(refit.staging_bytes(), way.staging_bytes);
  for (int i = 0; i < 2; ++i) {
    for (const auto memory : target.memory(me)) std::memset(memory.data(), 0, memory.size());
    RESHARD_TRY(mine.target.write());
    if (way.before_run) way.before_run();
    RESHARD_TRY(refit.run());
    RESHARD_TRY(mine.target.read());
    EXPECT_EQ(count_wrong_values(planner, target), 0) << "rank " << me.value() << ", run " << i;
  }
  RESHARD_TRY(ends.control->quiesce(patient()));
  return {};
}

/// The planner of two layouts given as text.
inline Planner planner_of(const RefitLayouts& layouts) {
  const auto model = model_of(layouts.config);
  return *Planner::make(layout_of(layouts.from, model, layouts.config),
                        layout_of(layouts.to, model, layouts.config));
}

/// Pairs of layouts that cover how sides may lie to each other.
inline std::vector<RefitLayouts> refit_layouts() {
  return {
      {"collocated", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4", 4},
      {"disjoint_halves", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4,offset=4", 8},
      {"overlapping", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4,offset=3", 7},
      {"idle_ranks", tiny_dense(), "megatron:tp=2,offset=1", "vllm:tp=2,offset=4", 8},
      {"few_to_many", wide_moe(), "hf:shards=1", "vllm:tp=4,offset=1", 5},
      {"many_to_few", wide_moe(), "megatron:tp=2,pp=4,ep=2,etp=1", "hf:shards=1", 8},
      {"one_rank", tiny_moe(), "hf:shards=1", "vllm:tp=1", 1},
      {"mixers", tiny_qwen3_next(), "megatron:tp=2", "vllm:tp=4,offset=1", 5},
      {"latent", tiny_deepseek(), "megatron:tp=2,pp=2", "vllm:tp=2,offset=4", 6},
  };
}

}  // namespace reshard
