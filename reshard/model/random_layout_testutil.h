// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/model/model_layout.h"

namespace reshard {

/// A model of up to four small tensors with random ranks 0 to 3 and dtypes of 8 and 16 bits. For
/// use in a rapidcheck property.
std::shared_ptr<const ModelSpec> random_model();

/// A model of one to three BF16 tensors of rank 2 or 3, most with even numbers of columns.
std::shared_ptr<const ModelSpec> random_matrices();

enum class RandomForms { as_they_are, any };

/// A random layout on up to 12 ranks from a random first rank: random axes; cuts over any axes with
/// any rule; tensors that are stacked in one local tensor, held twice, restricted to some
/// coordinates, padded. Every element is on some rank. With RandomForms::any floating-point tensors
/// are stored in other dtypes and through value maps.
std::shared_ptr<const ModelLayout> random_layout(std::shared_ptr<const ModelSpec> model,
                                                 RandomForms forms = RandomForms::as_they_are);

}  // namespace reshard
