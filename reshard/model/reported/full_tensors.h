// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/model/model_layout.h"

namespace reshard {

/// A local tensor of a rank, as a part of a full tensor of its framework: Megatron's
/// linear_qkv.weight, say, which is made of three tensors of the checkpoint.
struct ReportedTensor {
  std::string name;   ///< in the rank's module.
  std::string whole;  ///< the full tensor's name.
  DType dtype = DType::bf16;
  Dims shape;  ///< of the full tensor.
  /// For each dimension of the full tensor: the indices that the rank holds, as runs in the order
  /// in which it stores them. A run may be empty.
  std::vector<std::vector<Interval>> runs;
};

/// The tensors that a rank reports.
struct RankTensors {
  Rank rank;
  std::vector<ReportedTensor> tensors;
};

/// The full tensors of a framework, by name: the boxes of a model's tensors that each is made of.
/// Not thread-safe.
class FullTensors {
 public:
  /// The model's own tensors are full tensors. `model_name` is for errors.
  FullTensors(std::string model_name, std::shared_ptr<const ModelSpec> model);
  FullTensors(FullTensors&&) noexcept;
  FullTensors& operator=(FullTensors&&) noexcept;
  ~FullTensors();

  /// Adds the local tensors of the layout's first rank, over the same model, as full tensors. They
  /// count before the model's own of the same name, and after those of layouts that were added
  /// before.
  void add(std::shared_ptr<const ModelLayout> layout);

  bool contains(std::string_view name) const;

  /// The layout of what ranks hold; tensors of the model that no rank holds are omitted on purpose.
  /// Of several tensors of one name on a rank, the last counts. Cost: proportional to the tensors
  /// and their runs.
  ///
  /// Errors: `not_found` for a full tensor that is not known, with `hint` as what to do;
  /// `invalid_argument` for one of another shape, for runs outside of it, and for ranks not below
  /// kMaxExplicitRanks; `unsupported` for one whose boxes run along no dimension, or for more
  /// dimensions than kMaxDims.
  Result<ModelLayout> layout(std::string name, std::span<const RankTensors> ranks,
                             const std::string& hint) const;

 private:
  struct Composition;
  struct Source {
    std::shared_ptr<const ModelLayout> layout;  ///< null: the model's tensor `tensor`.
    SlotId slot;
    TensorId tensor;
    /// Made when a rank first holds a part of it.
    mutable std::shared_ptr<const Composition> composition = nullptr;
  };
  Result<std::shared_ptr<const Composition>> composition(const std::string& name,
                                                         const Source& source) const;
  Result<const Source*> find(const ReportedTensor& held, Rank rank, const std::string& hint) const;

  std::string model_name_;
  std::shared_ptr<const ModelSpec> model_;
  std::map<std::string, Source, std::less<>> layouts_, own_;
};

}  // namespace reshard
