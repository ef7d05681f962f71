// SPDX-License-Identifier: Apache-2.0
// What readers of codes share: the codes' parts in the files of a checkpoint. Internals of
// decodings.h.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/io/hf/code_form.h"
#include "reshard/transform/decode.h"

namespace reshard::identify {

inline constexpr std::initializer_list<DType> kFloats = {DType::f16, DType::bf16, DType::f32};

/// The number of groups into which `n` elements are divided, of `size` each but for the last. Size
/// 0 stands for one group.
constexpr Index groups_of(Index n, Index size) { return size == 0 ? 1 : (n + size - 1) / size; }

/// The dtype of decoded weights with this torch name ("bfloat16"): F16, BF16 or F32; none for
/// others.
std::optional<DType> value_dtype(std::string_view torch_name);

/// A tensor of codes, found with its parts.
struct FoundCodes {
  std::string tensor;  ///< its name when it is decoded.
  Dims shape;
  DType dtype = DType::bf16;
  CodedTensor codes;
  std::vector<std::string> parts = {};  ///< names of the tensors beside the codes.
};

/// The form required of a part: its name, one of the dtypes, and its shape.
struct WantedPart {
  std::string name;
  std::initializer_list<DType> dtypes;
  Dims shape;
};

/// The files of a checkpoint whose weights are codes. Borrows its arguments.
class CodeFiles {
 public:
  /// @param values the dtype of decoded weights, where the files do not say it
  CodeFiles(const CodeForm& form, const Checkpoint& files, DType values)
      : form_(form), files_(files), values_(values) {}

  const CodeForm& form() const { return form_; }
  const Checkpoint& files() const { return files_; }
  DType values() const { return values_; }

  const std::byte* data(const CheckpointTensor& t) const { return files_.data(t).data(); }
  /// Null if the files have no such tensor.
  const CheckpointTensor* stored(const std::string& name) const {
    return find_tensor(files_.tensors(), name);
  }
  /// The part, which is added to found.parts. Errors, Code::unsupported: it is missing, or has
  /// another dtype or shape than the codes need.
  Result<const CheckpointTensor*> part(FoundCodes& found, const CheckpointTensor& codes,
                                       const WantedPart& want) const;
  /// A matrix of I8, without its scales.
  CodedMatrix signed_bytes(const CheckpointTensor& t) const;

 private:
  const CodeForm& form_;
  const Checkpoint& files_;
  DType values_;
};

}  // namespace reshard::identify
