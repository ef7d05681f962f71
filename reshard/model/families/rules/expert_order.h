// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "reshard/model/families.h"

namespace reshard::families {

/// Places `num_experts + redundant` physical experts on `ep` ranks. Physical expert p is logical
/// expert p mod num_experts, or what the tables say (one table, or one per layer with experts).
/// Linear: ranks hold runs of experts, the first ranks one more; round robin: rank r holds r, r +
/// ep, ... After its own experts each rank holds those that are `behind` them, numbered from
/// num_experts.
struct ExpertPlacement {
  Index num_experts = 0, redundant = 0, ep = 1;
  bool round_robin = false;
  bool even = false;  ///< all ranks must hold equally many; always so with redundant experts.
  Index behind = 0;
  Index num_layers = 0;  ///< layers with experts.
};
/// The logical experts in the order of ranks, for each table. Errors: tables of another size or
/// number, with an unknown expert or without a known one; ranks that would hold different numbers
/// of experts where they must not.
Result<std::vector<std::vector<Index>>> expert_orders(const ExpertPlacement& how,
                                                      const ExpertTables* tables);

/// The orders of the layers of a model, each made once.
class ExpertOrders {
 public:
  /// Borrows the tables, which may be null.
  explicit ExpertOrders(const ExpertTables* tables) : tables_(tables) {}

  /// Adds the layer with experts that a tensor is in: its name up to the first number.
  void add_layer(std::string_view tensor);
  /// The order of the layer that a tensor is in; of `how`, num_layers is read from here. Valid as
  /// long as this object. Errors as of expert_orders(). @pre all layers are added
  Result<const std::vector<Index>*> of(std::string_view tensor, ExpertPlacement how);

 private:
  using Layer = std::pair<std::string, Index>;  ///< "model.layers.", 3

  const ExpertTables* tables_;
  std::map<Layer, std::size_t> layers_;
  bool numbered_ = false;
  std::map<std::tuple<Index, Index, bool, Index>, std::vector<std::vector<Index>>> made_;
};

}  // namespace reshard::families
