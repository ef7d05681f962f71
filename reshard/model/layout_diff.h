// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/model/model_layout.h"

namespace reshard {

/// A difference between two layouts in one local tensor.
struct LayoutDifference {
  std::string name;  ///< of the local tensor; of a canonical tensor if only one layout omits it.
  RankSet ranks;     ///< the ranks where they differ in this way.
  std::string what;  ///< such as "shape [8, 4] and [4, 4]".
};

/// The local tensors, by rank and name, that are not the same in both layouts: held by one only, of
/// another shape, dtype or value map, or with an element that is not the same element of the same
/// canonical tensor (by name) in both. How boxes are cut, the order of tensors, and the layouts'
/// names do not matter. Empty if both describe the same memory. In the order of ranks and names.
///
/// Two fragments are compared as wholes: where one canonical element has several places in a local
/// tensor, layouts that cut these places crosswise count as different.
std::vector<LayoutDifference> diff_layouts(const ModelLayout& a, const ModelLayout& b);

}  // namespace reshard
