// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reshard/model/explicit_slots.h"
#include "reshard/model/tensor.h"
#include "reshard/sharding/rank_set.h"

namespace reshard {

/// A layout given tensor by tensor, without a closed form: what a file of a traced layout holds.
struct ExplicitLayout {
  /// A local tensor, and all ranks that hold it.
  struct Local {
    RankSet ranks;
    ExplicitTensor tensor;
  };
  std::string name;                          ///< of the layout it was made from.
  std::shared_ptr<const ModelSpec> tensors;  ///< the model's; TensorIds are positions in it.
  RankSet ranks;                             ///< all ranks, including those that hold nothing.
  std::vector<TensorId> omitted;             ///< ascending.
  std::vector<Local> locals;
};

/// Any layout as an explicit one: equal local tensors of several ranks become one entry, in the
/// order of ranks and slots. Cost: proportional to the fragments of all ranks.
ExplicitLayout explicit_tensors(const ModelLayout& layout);

}  // namespace reshard
