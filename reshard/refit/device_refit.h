// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/plan/planner.h"
#include "reshard/refit/session_side.h"

namespace reshard {

struct DeviceRefitOptions {
  /// Thread blocks that run at a time; 0: as many as the GPU holds. Fewer leave multiprocessors to
  /// kernels that run meanwhile.
  int most_blocks = 0;
  std::set<std::string> ignore = {};  ///< canonical names of tensors that one side may lack.
  std::set<std::string> only = {};    ///< canonical names of the tensors to move; empty: all.
  /// The most memory of the GPU for whole matrices between two conversions. Bytes.
  Index between_bytes = Index{1} << 30;
};

/// A refit between ranks whose memory is all on one GPU, such as a trainer and an engine that share
/// it: copies, casts, quantisation. What needs no conversion takes one launch, a conversion a few
/// for each rank and 32 MiB of values, whatever the number of tensors. Prepared once, launched
/// every step.
class DeviceRefit {
 public:
  /// Resolves the deliveries to all destination ranks to addresses, and keeps them on the GPU. The
  /// sides' buffers have all ranks' memory, which must not move while this object lives. Blocks
  /// until the tables are on the GPU. Errors: a layout is missing; those of plan_moves() and
  /// check_memory(); the buffers lack a tensor of the plan, or it is not in the memory of this GPU
  /// (named); `unsupported` if this build has no kernels for it; memory that is short; the
  /// driver's.
  static Result<DeviceRefit> prepare(const SessionSide& source, const SessionSide& target,
                                     std::shared_ptr<const cuda::Device> device,
                                     const DeviceRefitOptions& options = {});
  /// The same for a plan that is made already, between layouts of the memory: what it moves, and no
  /// more. `options.ignore` and `only` have no meaning.
  static Result<DeviceRefit> prepare(const Planner& planner, const RankBuffers& source,
                                     const RankBuffers& target,
                                     std::shared_ptr<const cuda::Device> device,
                                     const DeviceRefitOptions& options = {});
  DeviceRefit(DeviceRefit&&) noexcept;
  DeviceRefit& operator=(DeviceRefit&&) noexcept;
  ~DeviceRefit();

  /// Gives a stream of this GPU the whole refit, after the work that the stream has. Neither waits
  /// nor allocates, so a CUDA graph can capture it. The object must stay until the stream has run
  /// it, and one stream at a time has a refit of it. Errors: the driver's.
  Result<> launch(const cuda::Stream& stream) const;

  /// Launches of one refit.
  std::size_t num_launches() const;
  /// Delivered by each refit, and memory copies for that.
  Index bytes() const;
  Index copies() const;

 private:
  struct State;
  explicit DeviceRefit(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard
