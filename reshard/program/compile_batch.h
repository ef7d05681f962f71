// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/layout/strided.h"
#include "reshard/program/program.h"

namespace reshard {

/// A tensor that one rank sends to another, as one of the two sees it.
struct BatchTransfer {
  Rank peer;             ///< another rank.
  std::uint64_t id = 0;  ///< equal on both sides; of one pair and direction, each id is used once.
  bool is_send = false;
  /// From the tensor's memory to its elements in order, without gaps: dst_offset is 0, and what
  /// loops write ascends. Strides are not negative.
  StridedCopy packing;
};

/// The sends, receives and copies that one rank does at once, without a plan. A tensor that is
/// written must not overlap any other.
struct TransferBatch {
  std::vector<BatchTransfer> transfers;
  std::vector<StridedCopy> copies;  ///< within the rank.
};

/// Compiles one rank's part of a batch. The memory of transfer i is local tensor i of the source if
/// it is sent, of the target if it is received; copy i is from local tensor n + i of the source to
/// that of the target, after n transfers. `staging_bytes` is at least 32 KiB and equal on all
/// ranks: it decides how transfers are cut into messages. Tensors without gaps are sent and
/// received in place, all others through staging. There is no barrier: a rank with nothing to do
/// need not take part. `round_bits` as in CompileOptions.
///
/// A send matches the receive with the same id and number of bytes; without bytes, it needs none.
/// Whatever has no match, or one of another size, leads to messages that never complete or differ
/// in size, which are errors of the transport.
///
/// Not collective. Errors: `invalid_argument` for too little staging or too many bytes.
Result<Program> compile_batch(Rank rank, int world, const TransferBatch& batch, Index staging_bytes,
                              int round_bits = -1);

}  // namespace reshard
