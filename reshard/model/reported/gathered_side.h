// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/model/explicit_slots.h"
#include "reshard/model/reported/gathered_metadata.h"

namespace reshard::reported {

/// The reports of one side, with names resolved and sizes summed over groups. Internal to
/// gathered_layouts.
class GatheredSide {
 public:
  /// Rows along the cut dimension, per block, of one member of a group.
  using Blocks = std::vector<Index>;

  /// A tensor, under its resolved name.
  struct Tensor {
    std::string name;
    DType dtype = DType::bf16;
    Dims shape;     ///< global; along `dim` the sum over members and blocks.
    int dim = -1;   ///< the cut dimension; -1: none.
    Blocks blocks;  ///< global blocks, if partition_sizes are given; otherwise empty.
    Rank first;     ///< a rank that reports it.
    /// Set for expert tensors that are matched by position in the expert group.
    Index expert_position = -1, expert_group_size = 0;
    bool stacked =
        false;  ///< [num_experts, ...]; a rank's part is given by its position in the expert group.
  };

  /// @param label "source" or "target", for error messages. Borrows `all`.
  GatheredSide(const GatheredMetadata& all, std::string label)
      : all_(all), label_(std::move(label)) {}

  /// Resolves names and sums up sizes. Errors: see gathered_layouts.
  Result<> read();
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// The index of a resolved name in tensors(), or -1.
  int find(const std::string& name) const;
  /// Adds every rank's local tensors. `ids[i]` is the canonical tensor of tensors()[i].
  void add_slots(const std::vector<TensorId>& ids, const ModelSpec& model,
                 ExplicitSlots& slots) const;

 private:
  using Parameter = GatheredMetadata::Parameter;
  /// Ranks that hold the same: of one template, and at the same positions of groups of the same
  /// sizes (of the same groups, if groups share tensors in different ways).
  struct RankClass {
    std::uint32_t layout = 0;
    std::size_t entry = 0;  ///< of the first rank.
    RankSet ranks;
    std::vector<int> tensors;  ///< per parameter of the template.
  };
  struct Position {
    Index at = 0, size = 1;
    std::uint32_t group = 0;
  };
  /// How one group shares a tensor: the blocks of each member; empty until it has reported.
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
