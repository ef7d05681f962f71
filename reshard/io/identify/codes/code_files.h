// SPDX-License-Identifier: Apache-2.0
// What readers of codes share: the codes' parts in the files of a checkpoint. Internals of
// decodings.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/io/hf/code_form.h"
#include "reshard/io/identify/codes/coded_weights.h"
#include "reshard/transform/decode.h"

namespace reshard::identify {

/// The dtype of decoded weights with this torch name ("bfloat16"): F16, BF16 or F32; none for
/// others.
std::optional<DType> value_dtype(std::string_view torch_name);

/// A tensor of codes, found with its parts.
struct FoundCodes {
  std::string tensor;  ///< its name when it is decoded.
  Dims shape;
  DType dtype = DType::bf16;
  CodedTensor codes;
  std::vector<std::string> parts = {};     ///< names of the tensors beside the codes.
  std::optional<CodedWeight> weight = {};  ///< the form of integers in files.
};

/// The files of a checkpoint whose weights are codes. Borrows its arguments.
class CodeFiles {
 public:
  /// @param spec the tensors of the files
  /// @param values the dtype of decoded weights, where the files do not say it
  CodeFiles(const CodeForm& form, const Checkpoint& files, const ModelSpec& spec, DType values)
      : form_(form), files_(files), spec_(spec), values_(values) {}

  const CodeForm& form() const { return form_; }
  const ModelSpec& spec() const { return spec_; }
  const Checkpoint& files() const { return files_; }
  DType values() const { return values_; }

  const std::byte* data(const CheckpointTensor& t) const { return files_.data(t).data(); }
  /// Null if the files have no such tensor.
  const CheckpointTensor* stored(const std::string& name) const {
    return find_tensor(files_.tensors(), name);
  }
  /// The part, which is added to found.parts. Errors: those of find_part().
  Result<const CheckpointTensor*> part(FoundCodes& found, const CheckpointTensor& codes,
                                       const WantedPart& want) const;
  /// A matrix of I8, without its scales.
  CodedMatrix signed_bytes(const CheckpointTensor& t) const;

 private:
  const CodeForm& form_;
  const Checkpoint& files_;
  const ModelSpec& spec_;
  DType values_;
};

}  // namespace reshard::identify
