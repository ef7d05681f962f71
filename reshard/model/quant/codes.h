// SPDX-License-Identifier: Apache-2.0
// Weights that are stored as codes beside scales, zero points and orders of columns, which no
// format of quant_format.h describes: AWQ, GPTQ, compressed-tensors' integers with zero points.
// They are decoded (transform/decode.h), or moved as they are stored: codes_layout().
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// A dimension of a stored part: the rows or the columns of the weight [rows, cols], in units of
/// one, of whole words, or of groups of columns.
struct CodeDim {
  bool rows = false;   ///< else columns.
  Index unit = 1;      ///< rows or columns that `elements` are for; the last may be fewer.
  Index elements = 1;  ///< 3 words of 32 codes of 3 bits, else 1.
  Index multiple = 1;  ///< the part has a multiple of these elements; the last ones are padding.
  friend bool operator==(const CodeDim&, const CodeDim&) = default;
};

/// A tensor of the files that is a part of a weight.
struct CodePart {
  enum class Role : std::uint8_t {
    codes,
    scales,
    zeros,  ///< zero points.
    order,  ///< the group of each column.
    shape,  ///< of the weight: two integers.
  };
  Role role = Role::codes;
  std::string name;  ///< in files: "model.layers.0.mlp.up_proj.qweight".
  DType dtype = DType::i32;
  std::vector<CodeDim>
      dims;  ///< as stored, the last varies fastest; one for rows, one for columns, at most.
};

/// A weight that is stored as codes: (code - zero point) * scale.
struct CodedWeight {
  Index rows = 0, cols = 0;  ///< of the weight, [out, in].
  int bits = 4;              ///< of a code and of a zero point: 2, 3, 4 or 8.
  int word_bytes = 4;        ///< of a word of codes, 1 or 4.
  bool is_signed = false;
  /// The place in its word of each of consecutive codes; place 0 is in the lowest bits.
  std::array<std::uint8_t, 16> place = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  int zero_offset = 0;          ///< added to every zero point.
  Index group_cols = 0;         ///< columns of a group.
  std::vector<CodePart> parts;  ///< the codes first.
  /// True if the groups are consecutive columns: of a table of orders, what its elements say; none
  /// if they are not known.
  std::optional<bool> in_order = true;
  /// Ranks whose columns are a part of the only group hold its scales each; else they are refused.
  bool shares_group = false;
  bool files_only = false;  ///< no engine holds the parts, which move as whole tensors of files.

  /// Consecutive codes that fill whole words, of num_words() words: 8 of 4 bits in one word, 32 of
  /// 3 bits in three.
  Index per_word() const { return std::lcm(8 * word_bytes, bits) / bits; }
  Index num_words() const { return per_word() * bits / (8 * word_bytes); }
  Index groups() const { return (cols + group_cols - 1) / group_cols; }
  /// Null if there is none.
  const CodePart* part(CodePart::Role role) const;
  /// The shape of a part in the files.
  Dims shape_of(const CodePart& part) const;
  /// True if the elements of a part are known without the files: the shape, and an order of columns
  /// that are in order.
  bool is_known(const CodePart& part) const;
};

/// The weights of a checkpoint that are stored as codes.
struct ModelCodes {
  std::string form;  ///< in layouts, "quant=FORM": "awq", "gptq", "compressed-tensors".
  std::string text;  ///< "awq, 4 bits in groups of 128".
  std::map<std::string, CodedWeight> weights;  ///< by the name of the decoded weight.
  std::shared_ptr<const ModelSpec>
      tensors;  ///< of the model as it is stored: see stored_tensors().
};

/// True for the names of forms whose codes can be moved as they are stored.
bool is_code_form(std::string_view name);
/// Those names, for error messages: "awq, gptq, compressed-tensors".
std::string known_code_forms();

/// The tensors of a model as they are stored: the parts of each weight in place of its values.
/// Errors: those of ModelSpec::add().
Result<ModelSpec> stored_tensors(const ModelSpec& values, const ModelCodes& codes);

/// The layout of the codes, scales, zero points and orders of a layout of values, over
/// codes.tensors. Each part is cut where the weight is, in whole words and groups, and the
/// parts of sections are stacked as their weights are. A slot "X.weight" becomes "X.qweight" and so
/// on.
///
/// `engine`: vLLM's, which takes weights of two dimensions, drops orders of columns that
/// are in order, and keeps the shape of the last of fused weights.
///
/// Errors, Code::unsupported, which name the tensor: a cut inside a word or a group; a local tensor
/// that mixes codes and values, or codes of other parts; codes of which `files_only` is true;
/// padding, stored transposed, a value map or merged dimensions. For an engine also experts,
/// sections that are not one whole weight, and columns that are not in order.
Result<ModelLayout> codes_layout(const ModelLayout& values, const ModelCodes& codes,
                                 const std::string& name, bool engine);

}  // namespace reshard
