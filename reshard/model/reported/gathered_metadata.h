// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/model/reported/parameter_metadata.h"

namespace reshard {

/// The reports of all ranks of one model, without repetition: ranks whose reports differ only in
/// rank and groups share a template.
///
/// Invariants, kept by MetadataGatherer and decode_metadata: indices are inside their tables; ranks
/// ascend; every rank is a member of each of its tensor and expert groups; shapes do not overflow.
struct GatheredMetadata {
  struct Parameter {
    std::string name;
    Dims shape;
    DType dtype = DType::bf16;
    bool is_tp = false, is_ep = false;
    int partition_dim = 0;
    Index partition_stride = 1;
    std::optional<std::vector<Index>> partition_sizes;
    std::optional<Index> num_experts;
    /// Indices into the rank's groups; -1: none.
    std::int8_t tensor_group = -1, expert_group = -1, data_group = -1, pipeline_group = -1;
    friend bool operator==(const Parameter&, const Parameter&) = default;
  };
  struct Template {
    std::vector<Parameter> parameters;
    LayerPrefixMap layer_module_prefix_map;
    friend bool operator==(const Template&, const Template&) = default;
  };
  struct Entry {
    Rank rank;
    std::uint32_t layout = 0;           ///< index into `templates`.
    std::vector<std::uint32_t> groups;  ///< indices into `groups`.
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Template> templates;
  std::vector<std::vector<Rank>> groups;
  std::vector<Entry> ranks;
  friend bool operator==(const GatheredMetadata&, const GatheredMetadata&) = default;
};

/// The maximal number of groups that the parameters of one rank may name.
inline constexpr std::size_t kMaxGroupsOfRank = 64;
/// The maximal length of a parameter name in bytes.
inline constexpr std::size_t kMaxParameterName = 4096;

/// Builds GatheredMetadata rank by rank.
class MetadataGatherer {
 public:
  /// Adds the report of a rank. Errors name rank and parameter: a repeated rank; an owner that is
  /// not the rank; a tensor or expert group without the rank; a name that is repeated or too long;
  /// a shape that overflows; an element size that is not that of the dtype; a partition that does
  /// not match the shape.
  Result<> add(const RankMetadata& rank);
  /// Adds gathered reports. Errors: a repeated rank.
  Result<> add(const GatheredMetadata& other);
  /// All reports that were added; ranks ascending.
  GatheredMetadata finish() &&;

 private:
  Result<> add(Rank rank, std::uint32_t layout, std::vector<std::uint32_t> groups);
  std::uint32_t group_id(const std::vector<Rank>& ranks);
  std::uint32_t template_id(GatheredMetadata::Template layout);

  GatheredMetadata all_;
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> groups_, templates_;
  std::unordered_map<Rank, bool> seen_;
};

/// The report of one rank, with resolved names. Errors: those of assign_resolved_name_inplace. @pre
/// i < all.ranks.size()
Result<RankMetadata> expand(const GatheredMetadata& all, std::size_t i);

/// Checks the name, shape and partition of one parameter. Errors do not name rank or parameter.
Result<> check_parameter(const GatheredMetadata::Parameter& parameter);

}  // namespace reshard
