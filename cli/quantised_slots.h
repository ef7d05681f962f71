// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cli/output_files.h"
#include "reshard/exec/stream.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/model/quant/quantised_layout.h"
#include "reshard/transform/quantise.h"

namespace reshard::cli {

/// Where the local tensors of a pair are on a rank; `factor` is null where there is none.
struct SlotMemory {
  std::byte *values = nullptr, *data = nullptr, *scales = nullptr, *factor = nullptr;
};

/// One matrix of a pair, for the kernels.
struct QuantArea {
  FloatMatrix values;
  QuantMatrix quantised;
};

/// The matrices of a pair on a rank. Errors: those of check_quant_format().
Result<std::vector<QuantArea>> areas_of(const QuantisedLayout& layout,
                                        const QuantisedLayout::Pair& pair, Rank r,
                                        const SlotMemory& memory);

/// What moves as it is stored: a plan between stored layouts, and the source's. Null: nothing.
struct StoredSource {
  const Planner* planner = nullptr;
  const RankBuffers* buffers = nullptr;
  StreamDone done = {};
};

/// Writes the slots of one file of a quantised target. `planner` is one to target.values; values of
/// a pair come into memory as a whole, and its data and scales are made of them, but for pairs that
/// `stored` moves. Errors: those of
/// streaming and writing; a pair whose blocks are cut by shards (they must be quantised where they
/// are whole).
Result<> write_quantised(const Planner& planner, const StreamSource& source, const StreamDone& done,
                         const StoredSource& stored, const QuantisedLayout& target,
                         const OutputFile& file, SafetensorsWriter& writer,
                         const StreamOptions& options);

}  // namespace reshard::cli
