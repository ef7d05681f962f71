// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"

/// The two index files that say which safetensors files make up a checkpoint folder.
namespace reshard {

inline constexpr std::string_view kHfFile = "model.safetensors";
inline constexpr std::string_view kHfIndexFile = "model.safetensors.index.json";
inline constexpr std::string_view kRankIndexFile = "reshard.json";
inline constexpr std::string_view kConfigFile = "config.json";

/// Most ranks that a rank index may have.
inline constexpr int kMaxWorldSize = 1 << 20;

/// Which file holds each tensor: name -> file name.
using WeightMap = std::map<std::string, std::string>;

/// What reshard.json says: a checkpoint cut as `layout` says, one file of local tensors per rank.
struct RankIndex {
  std::string layout;              ///< as the command line takes it: "megatron:tp=2,pp=4".
  std::vector<std::string> files;  ///< by rank; ranks that hold the same may share a file.
  friend bool operator==(const RankIndex&, const RankIndex&) = default;
};

/// The weight map of a Hugging Face model.safetensors.index.json. Errors are Code::corrupt and do
/// not name the file; file names that are no plain names (see check_file_name) are among them.
Result<WeightMap> parse_hf_index(std::string_view text);
/// The text of that file. `total_bytes` is the sum over the tensors, without headers.
std::string hf_index_text(const WeightMap& weight_map, std::int64_t total_bytes);

/// What a reshard.json says. Every rank of its world_size must be named once; unknown keys are
/// ignored. Errors are Code::corrupt, or Code::unsupported for another version, and do not name the
/// file.
Result<RankIndex> parse_rank_index(std::string_view text);
/// The text of that file.
std::string rank_index_text(const RankIndex& index);

/// "rank-00003.safetensors"
std::string rank_file_name(Rank rank);
/// "model-00002-of-00005.safetensors", for shard 1 of 5; "model.safetensors" when there is one.
/// @pre 0 <= shard < shards
std::string hf_file_name(int shard, int shards);

}  // namespace reshard
