// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/model/model_layout.h"

namespace reshard {

/// A model of up to four small tensors of random rank 0 to 3, dtypes of 8 and 16 bits. Inside a
/// rapidcheck property.
std::shared_ptr<const ModelSpec> random_model();

/// A model of one to three tensors of rank 2 or 3 in BF16, with even numbers of columns but for
/// some.
std::shared_ptr<const ModelSpec> random_matrices();

enum class RandomForms { as_they_are, any };

/// A random layout of a model on up to 12 ranks from a random first rank: random axes, cuts over
/// any axes under any rule, several tensors stacked in one local tensor, tensors held twice,
/// restricted to some coordinates, padded. Every element of every tensor is on some rank. With
/// RandomForms::any floating-point tensors are stored in other dtypes and through value maps.
std::shared_ptr<const ModelLayout> random_layout(std::shared_ptr<const ModelSpec> model,
                                                 RandomForms forms = RandomForms::as_they_are);

}  // namespace reshard
