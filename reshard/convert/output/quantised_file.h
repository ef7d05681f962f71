// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/convert/output/output_files.h"
#include "reshard/exec/stream.h"
#include "reshard/io/checkpoint/tensor_file_writer.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard::output {

/// What moves as it is stored: a plan between stored layouts, and the source's local tensors. Null:
/// nothing does.
struct StoredSource {
  const Planner* planner = nullptr;
  const RankBuffers* buffers = nullptr;
  StreamDone done = {};
};

/// Writes the slots of one file of a quantised target. `planner` plans to target.values. The values
/// of a pair are read into memory as a whole and quantised there, except for the pairs that
/// `stored` moves. Errors: those of streaming and writing; a pair whose blocks are cut by shards
/// (quantise it in a layout where they are whole).
Result<> write_quantised(const Planner& planner, const StreamSource& source, const StreamDone& done,
                         const StoredSource& stored, const QuantisedLayout& target,
                         const OutputFile& file, TensorFileWriter& writer,
                         const StreamOptions& options);

}  // namespace reshard::output
