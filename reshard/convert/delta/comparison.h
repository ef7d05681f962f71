// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "reshard/convert/delta/parts.h"
#include "reshard/convert/output/file_fingerprint.h"
#include "reshard/exec/progress.h"
#include "reshard/io/delta/code_store.h"
#include "reshard/io/delta/delta_index.h"
#include "reshard/transform/delta/delta_code.h"

namespace reshard::delta {

/// The parts of two checkpoints, compared block by block by several threads.
class Comparison {
 public:
  /// Borrows all three. A part of `next` has the part of `base` of the same name, file and size, if
  /// there is one.
  Comparison(const Parts& base, const Parts& next, DeltaCodeStore& codes);

  /// Codes every block of `next` and fingerprints both sides. Call it once. Errors: the disk;
  /// `aborted` if `progress` cancelled.
  Result<> run(int threads, const Progress& progress);

  /// The result of run(). The blocks' `at` are offsets in the store.
  DeltaIndex index() const;

 private:
  /// A part of either or both.
  struct Pair {
    Pair(Parts::Place b, Parts::Place n);
    const Part& part() const { return next.part != nullptr ? *next.part : *base.part; }
    const PartFile& file() const { return next.file != nullptr ? *next.file : *base.file; }

    Parts::Place base, next;
    output::FileFingerprint base_fingerprint, next_fingerprint;
    std::vector<DeltaBlock> blocks;
  };
  struct Unit {
    Pair* pair = nullptr;
    std::size_t block = 0;
  };

  void add(Parts::Place base, Parts::Place next);
  Result<> compare(const Unit& unit, DeltaEncoder& encoder);

  DeltaCodeStore& codes_;
  bool is_one_file_;
  std::deque<Pair> pairs_;  ///< in the order of DeltaIndex::parts.
  std::vector<Unit> units_;
  Index bytes_ = 0;  ///< of all units.
};

}  // namespace reshard::delta
