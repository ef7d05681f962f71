// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/model/config.h"

namespace reshard::families {

/// The names that a card has for the tensors of a checkpoint: the decoder's begin with "model.",
/// and the head is "lm_head.weight", whatever prefix the checkpoint gives them ("backbone.",
/// "model.language_model.", none).
class ClassNames {
 public:
  /// Null: all names are the checkpoint's.
  explicit ClassNames(const ModelConfig* config);

  /// The card's name of a tensor. Valid until the next call.
  std::string_view of(std::string_view name);
  /// The checkpoint's name of a tensor.
  std::string in_checkpoint(std::string_view name) const;

 private:
  bool same_ = true;
  std::string decoder_, head_;  ///< the checkpoint's.
  std::string buffer_;
};

}  // namespace reshard::families
