// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/refit/session_side.h"

namespace reshard::session {

/// The addresses of one rank's local tensors of one side when the session was prepared, to detect
/// that they changed.
class Addresses {
 public:
  Addresses() = default;
  /// `side`: "source" or "target", for texts.
  Addresses(std::string side, const SessionSide& of, Rank me);

  /// Digest of all addresses as they are now, in both copies. Allocates nothing.
  std::uint64_t digest(const SessionSide& now) const;
  /// "target tensor 'x' is at another address", for the first that is; "" if none is.
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

}  // namespace reshard::session
