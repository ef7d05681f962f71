// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/model/explicit_slots.h"
#include "reshard/model/reported/gathered_metadata.h"

namespace reshard::reported {

/// One model's reports with names resolved and sizes summed over groups. Internal to
/// gathered_layouts.
class GatheredSide {
 public:
  /// Rows along the cut dimension: of each block, of one member of a group.
  using Blocks = std::vector<Index>;

  /// All that is known of a resolved name.
  struct Tensor {
    std::string name;
    DType dtype = DType::bf16;
    Dims shape;     ///< of the whole; along `dim` the sum over members and blocks.
    int dim = -1;   ///< that is cut; -1: none.
    Blocks blocks;  ///< of the whole, where partition_sizes say; else empty.
    Rank first;     ///< a rank that reports it.
    /// An expert tensor that is matched by position in the expert group.
    Index expert_position = -1, expert_group_size = 0;
    bool stacked = false;  ///< [num_experts, ...], parts by position in the expert group.
  };

  /// @param label "source" or "target", for messages. Borrows `all`.
  GatheredSide(const GatheredMetadata& all, std::string label)
      : all_(all), label_(std::move(label)) {}

  /// Resolves and sums. Errors: see gathered_layouts.
  Result<> read();
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// The position of a resolved name, or -1.
  int find(const std::string& name) const;
  /// Adds every rank's local tensors. `ids[i]` is the canonical tensor of tensors()[i].
  void add_slots(const std::vector<TensorId>& ids, const ModelSpec& model,
                 ExplicitSlots& slots) const;

 private:
  using Parameter = GatheredMetadata::Parameter;
  /// Ranks of one template at the same positions of groups of the same sizes (of the same groups,
  /// where groups differ in how they share): they hold the same.
  struct RankClass {
    std::uint32_t layout = 0;
    std::size_t entry = 0;  ///< the first of them.
    RankSet ranks;
    std::vector<int> tensors;  ///< per parameter of the template.
  };
  struct Position {
    Index at = 0, size = 1;
    std::uint32_t group = 0;
  };
  /// How one group shares a tensor: per member its blocks; empty where it has not reported.
  struct Shared {
    std::vector<Blocks> members;
    std::vector<bool> reported;
  };
  using SharedKey = std::pair<int, std::uint64_t>;

  void find_classes(bool by_group);
  Position position(const GatheredMetadata::Entry& entry, std::int8_t slot) const;
  Position cut_over(const RankClass& peers, const Parameter& p) const;
  static Blocks blocks_of(const Parameter& p);
  std::uint64_t share_key(const Position& position) const;
  Result<bool> read_once();
  Result<int> tensor_of(const RankClass& peers, const Parameter& p, const std::string& base);
  Result<bool> note(const RankClass& peers, const Parameter& p, int tensor);
  Result<> sum_up();
  Result<> sum_group(Tensor& tensor, const Shared& shared, bool& is_first);
  ExplicitTensor local_tensor(const RankClass& peers, const Parameter& p, int tensor, TensorId id,
                              const ModelSpec& model) const;
  tl::unexpected<Error> bad(const Tensor& tensor, const std::string& what) const;

  const GatheredMetadata& all_;
  std::string label_;
  bool by_group_ = false;
  std::vector<RankClass> classes_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, int> by_name_;
  std::map<SharedKey, Shared> shared_;
};

}  // namespace reshard::reported
