// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/dtype.h"

namespace reshard {

/// The values in a config.json of any class: whole numbers by name, which expressions of rules use.
struct ConfigValues {
  /// Booleans are 0 and 1. Those of nested objects have dotted names: "text_config.hidden_size".
  std::map<std::string, std::int64_t, std::less<>> numbers;
  std::vector<std::string> architectures;
  std::string model_type;
  std::optional<DType> dtype;  ///< `dtype` or `torch_dtype`, also of its text_config.
};

}  // namespace reshard
