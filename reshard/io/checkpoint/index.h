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

/// The two index files that list the safetensors files of a checkpoint folder.
namespace reshard {

inline constexpr std::string_view kHfFile = "model.safetensors";
inline constexpr std::string_view kHfIndexFile = "model.safetensors.index.json";
inline constexpr std::string_view kRankIndexFile = "reshard.json";
/// The index of torch.distributed.checkpoint.
inline constexpr std::string_view kDcpFile = ".metadata";
inline constexpr std::string_view kConfigFile = "config.json";

/// The largest number of ranks in a rank index.
inline constexpr int kMaxWorldSize = 1 << 20;

/// The file of each tensor: tensor name -> file name.
using WeightMap = std::map<std::string, std::string>;

/// The content of reshard.json: a checkpoint's layout, and the file of local tensors of each rank.
struct RankIndex {
  std::string layout;              ///< its notation, such as "megatron:tp=2,pp=4".
  std::vector<std::string> files;  ///< by rank; ranks with equal content may share a file.
  friend bool operator==(const RankIndex&, const RankIndex&) = default;
};

/// Parses the weight map of a Hugging Face model.safetensors.index.json. File names must be plain
/// names (files::check_file_name). Errors are Code::corrupt and do not name the file.
Result<WeightMap> parse_hf_index(std::string_view text);
/// The text of such a file. `total_bytes`: of all tensors, without headers.
std::string hf_index_text(const WeightMap& weight_map, std::int64_t total_bytes);

/// Parses a reshard.json. Every rank of its world_size must be listed once; unknown keys are
/// ignored. Errors are Code::corrupt, or Code::unsupported for another version, and do not name the
/// file.
Result<RankIndex> parse_rank_index(std::string_view text);
/// The text of such a file.
std::string rank_index_text(const RankIndex& index);

/// "rank-00003.safetensors"
std::string rank_file_name(Rank rank);
/// "model-00002-of-00005.safetensors" for shard 1 of 5; "model.safetensors" if `shards` is 1.
/// @pre 0 <= shard < shards
std::string hf_file_name(int shard, int shards);

}  // namespace reshard
