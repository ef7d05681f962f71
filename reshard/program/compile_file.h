// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "reshard/model/quant/quantised_layout.h"
#include "reshard/plan/planner.h"
#include "reshard/program/program.h"

namespace reshard {

struct FileOptions {
  /// The layouts whose stored form is the source's memory and the target's files; the plan's layout
  /// is then their values. Null: the plan's layout is the memory, or the files. Borrowed.
  const QuantisedLayout *from = nullptr, *into = nullptr;
  /// The most bytes of a plain local tensor that a tile writes. A multiple of 4096.
  Index block_bytes = Index{4} << 20;
  Index unit_bytes = Index{512} << 10;  ///< of values that a tile converts, about.
};

/// Compiles a program that makes local tensors of a destination rank from sources whose memory is
/// all in this process. Each tile gathers some bytes in scratch, converts them, and puts them.
/// Every byte is put once, padding as zeros. The options and the longest rows of blocks bound the
/// scratch. `slots`: local tensors of what is written, in this order; data without its scales is
/// possible. Errors: blocks that shards cut (named); those of converted_rows(); sub-byte elements
/// that begin inside a byte.
Result<Program> compile_file(const Planner& planner, Rank dst, std::span<const SlotId> slots,
                             const FileOptions& options);

}  // namespace reshard
