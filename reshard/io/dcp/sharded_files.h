// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/dcp/open_folder.h"

/// Safetensors files that hold pieces of tensors, as torch's HuggingFaceStorageWriter writes them:
/// a piece has the name of its tensor, and the file's metadata says where it begins in the tensor.
namespace reshard::dcp {

/// The name of that metadata: {"w": {"saved_offsets": [4, 0]}, ...}.
inline constexpr const char* kShardingInfo = "DCP_SHARDING_INFO";

/// Whether a file has that metadata.
bool is_sharded(const SafetensorsHeader& header);

/// The offsets of a file's tensors in the whole ones, in the order of header.tensors; zeros if its
/// metadata does not say. Errors do not name the file: metadata of another form, or without one of
/// the tensors.
Result<std::vector<Dims>> saved_offsets(const SafetensorsHeader& header);

/// The paths of the safetensors files in a folder, sorted, if the first of them is_sharded(); else
/// none.
std::vector<std::string> sharded_files(const std::string& folder);

/// Opens these files as one checkpoint. A tensor reaches as far as its pieces. Errors name the
/// path: those of parse_safetensors() and saved_offsets(); pieces that have two dtypes or numbers
/// of dimensions, or that do not fill their tensor.
Result<Folder> open_sharded_files(const std::vector<std::string>& paths);

}  // namespace reshard::dcp
