// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "reshard/convert/delta/parts.h"
#include "reshard/io/delta/delta_file.h"

namespace reshard::delta {

/// How one part of the result comes about.
struct PartChain {
  const DeltaPart* result = nullptr;  ///< in the last delta.
  const DeltaPart* base = nullptr;    ///< in the first delta; null: the base is not read.
  Parts::Place source;                ///< in the base, or nulls.
  struct Step {
    const DeltaFile* file = nullptr;
    const DeltaPart* part = nullptr;
  };
  std::vector<Step> steps;  ///< whose codes are applied, in this order.
};

/// Opens deltas and checks that each begins where the last one ends. Errors: those of
/// DeltaFile::open; `invalid_argument`, naming both files, for one that begins elsewhere.
Result<std::vector<DeltaFile>> open_chain(const std::vector<std::string>& paths);

/// Finds the chain of each part of the result, in the order of the last delta. Borrows both.
/// Errors: `invalid_argument`, naming the base and the part: the base has no such part, or one of
/// another size; `corrupt`: deltas that disagree about a part.
/// @pre deltas are of open_chain() and not empty
Result<std::vector<PartChain>> chains_of(const Parts& base, std::span<const DeltaFile> deltas);

}  // namespace reshard::delta
