// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/refit/session/side.h"

namespace reshard {

/// Where one rank's local tensors of one side lay when the session was prepared, to notice that
/// they no longer do.
class Addresses {
 public:
  Addresses() = default;
  /// `side`: "source" or "target", in texts.
  Addresses(std::string side, const SessionSide& of, Rank me);

  /// Of all addresses as they are now, in both copies. Allocates nothing.
  std::uint64_t digest(const SessionSide& now) const;
  /// "target tensor 'x' moved", of the first that did; "" where none did.
  std::string change(const SessionSide& now) const;

 private:
  const std::byte* at(const RankBuffers* buffers, std::size_t i) const {
    return buffers == nullptr ? nullptr : buffers->at(me_, slots_[i]);
  }

  std::string side_;
  Rank me_;
  std::shared_ptr<const ModelLayout> layout_;
  std::vector<SlotId> slots_;
  std::vector<const std::byte*> front_, back_;
};

}  // namespace reshard
