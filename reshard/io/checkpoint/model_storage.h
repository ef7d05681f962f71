// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/model/families/transformers_modules.h"
#include "reshard/model/quant/codes.h"
#include "reshard/transform/decode.h"
#include "reshard/transform/merge.h"

namespace reshard {

/// A weight into which adapters are merged.
struct MergedWeight {
  MergedTensor values;
  bool is_replaced = false;  ///< the base is an adapter's, and not the checkpoint's.
};

/// How the files of a Model hold values that are not its tensors as they are. It borrows
/// Model::weights.
struct ModelStorage {
  /// Tensors whose values are decoded from others in the files, and from which form: "gptq, 4 bits
  /// in groups of 128". The form is read, not written. Borrows `weights`.
  std::map<std::string, CodedTensor> decoded;
  std::string decoded_from;
  /// Set if weights are stored as codes that can be moved as they are. Those of files are also in
  /// `decoded`; those of ranks are not decoded.
  std::optional<ModelCodes> codes;
  /// The weights, by the names of `tensors`, that the adapters of ModelOptions::merge change or
  /// replace. Borrows `weights` and `adapters`.
  std::map<std::string, MergedWeight> merged;
  std::vector<SafetensorsFile> adapters;
  /// The contents of the files, all `tensors` among them, if they stack experts as modules of
  /// transformers 5 do. Else empty: files hold `tensors` one by one, or as `pieces_layout` says.
  std::vector<ModuleTensor> file_form;
};

}  // namespace reshard
