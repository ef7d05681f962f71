// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "reshard/exec/stream.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// Computes plain values of local tensors of any layout of one model. Thread-safe.
class ReferenceValues {
 public:
  virtual ~ReferenceValues() = default;
  ReferenceValues() = default;
  ReferenceValues(const ReferenceValues&) = delete;
  ReferenceValues& operator=(const ReferenceValues&) = delete;

  /// Writes the canonical elements of a local tensor, in the form in which its layout stores them.
  /// @pre `to` has the local tensor's size and is zero
  virtual Result<> write(const std::shared_ptr<const ModelLayout>& layout, Rank r, SlotId slot,
                         std::span<std::byte> to, int threads) = 0;
};

/// The oracle's finite values, which can be quantised.
class OracleReferenceValues final : public ReferenceValues {
 public:
  /// `via`, by TensorId: the forms in which a source stores the values that it passes on; empty: no
  /// source between.
  explicit OracleReferenceValues(std::uint64_t seed, std::vector<StoredForm> via = {})
      : seed_(seed), via_(std::move(via)) {}
  Result<> write(const std::shared_ptr<const ModelLayout>& layout, Rank r, SlotId slot,
                 std::span<std::byte> to, int threads) override;

 private:
  std::uint64_t seed_;
  std::vector<StoredForm> via_;
};

/// The values that a source passes on by a plan.
class StreamedReferenceValues final : public ReferenceValues {
 public:
  /// `source` reads the local tensors of `from`.
  StreamedReferenceValues(std::shared_ptr<const ModelLayout> from, StreamSource source)
      : from_(std::move(from)), source_(std::move(source)) {}
  /// Errors: those of Planner::make() and stream_rank().
  Result<> write(const std::shared_ptr<const ModelLayout>& layout, Rank r, SlotId slot,
                 std::span<std::byte> to, int threads) override;

 private:
  Result<std::shared_ptr<const Planner>> planner(const std::shared_ptr<const ModelLayout>& to);

  std::shared_ptr<const ModelLayout> from_;
  StreamSource source_;
  std::mutex mutex_;
  std::map<const ModelLayout*, std::shared_ptr<const Planner>> planners_;
};

/// The plan of the tensors that both layouts hold. Errors: those of Planner::make().
Result<std::shared_ptr<const Planner>> plan_of_both(std::shared_ptr<const ModelLayout> from,
                                                    std::shared_ptr<const ModelLayout> to);

/// Streams one local tensor into memory. @pre `to` has its size
Result<> stream_into(const Planner& planner, const StreamSource& source, Rank r, SlotId slot,
                     std::span<std::byte> to, int threads);

}  // namespace reshard
