// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "reshard/base/dtype.h"
#include "reshard/model/tensor.h"

namespace reshard::families {

/// The form in which a module of transformers holds a tensor of the checkpoint.
enum class Held {
  parameter,   ///< a parameter, or nothing known to the contrary.
  buffer,      ///< in the dtype of the model. fully_shard leaves buffers whole.
  f32_buffer,  ///< in float32, regardless of the dtype the model is loaded in.
  f32_parameter,
  unknown,  ///< a buffer in some classes and a parameter in others; this class is not known.
};

/// The form in which classes of this model_type hold the tensor (transformers 5.23, modeling_*.py).
/// `model_type` may be empty. Only tensors that some class has as a buffer can be Held::unknown,
/// and of these only the correction biases of routers, which many classes have.
Held held_as(std::string_view model_type, std::string_view tensor);

/// The dtype in which a layout with the key dtype stores a tensor; none: that of the checkpoint,
/// which scales of activations keep. `chosen`: the value of the key.
std::optional<DType> stored_dtype(const CanonicalTensor& tensor, Held held,
                                  std::optional<DType> chosen);

}  // namespace reshard::families
