// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/model/reported/parameter_metadata.h"

namespace reshard {

/// What all ranks of one model report, each fact once: ranks that report the same but for their
/// rank and groups share a template.
///
/// Invariant (kept by MetadataGatherer and decode_metadata): numbers are inside their tables, ranks
/// ascend, every rank stands in each of its tensor and expert groups, shapes do not overflow.
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
    /// Positions among the rank's groups; -1: none.
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
    std::uint32_t layout = 0;           ///< a position in `templates`.
    std::vector<std::uint32_t> groups;  ///< positions in `groups`.
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Template> templates;
  std::vector<std::vector<Rank>> groups;
  std::vector<Entry> ranks;
  friend bool operator==(const GatheredMetadata&, const GatheredMetadata&) = default;
};

/// The most groups that the parameters of one rank may name.
inline constexpr std::size_t kMaxGroupsOfRank = 64;
/// The most characters of a parameter's name.
inline constexpr std::size_t kMaxParameterName = 4096;

/// Builds GatheredMetadata rank by rank.
class MetadataGatherer {
 public:
  /// Adds a rank's report. Errors name rank and parameter: a rank twice, an owner that is not the
  /// rank, a rank that is not in a tensor or expert group it names, a name twice or too long, a
  /// shape that overflows, an element size that is not the dtype's, a partition that is not the
  /// shape's.
  Result<> add(const RankMetadata& rank);
  /// Adds what was gathered elsewhere. Errors: a rank twice.
  Result<> add(const GatheredMetadata& other);
  /// All that was added; ranks ascending.
  GatheredMetadata finish() &&;

 private:
  Result<> add(Rank rank, std::uint32_t layout, std::vector<std::uint32_t> groups);
  std::uint32_t group_id(const std::vector<Rank>& ranks);
  std::uint32_t template_id(GatheredMetadata::Template layout);

  GatheredMetadata all_;
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> groups_, templates_;
  std::unordered_map<Rank, bool> seen_;
};

/// The report of one rank, resolved names assigned. @pre i < all.ranks.size() Errors: those of
/// assign_resolved_name_inplace.
Result<RankMetadata> expand(const GatheredMetadata& all, std::size_t i);

/// Checks one parameter by itself: name, shape, partition. Errors do not name rank or parameter.
Result<> check_parameter(const GatheredMetadata::Parameter& parameter);

}  // namespace reshard
