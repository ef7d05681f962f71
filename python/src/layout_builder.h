// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python/src/layout.h"
#include "reshard/model/explicit_slots.h"

namespace reshard::python {

/// reshard.PlacedBox: by name, as a caller gives it.
struct NamedPlacedBox {
  std::string tensor;
  Box box;
  std::vector<Index> at;
  std::vector<Index> dims;  ///< empty: dimension i of the tensor is dimension i here.
  std::vector<Index> gaps;  ///< empty: none.
};

/// reshard.LayoutBuilder: a layout given tensor by tensor. Checks all that it is given, so that
/// finish() yields a layout whose shard maps are valid.
class CheckedLayoutBuilder {
 public:
  CheckedLayoutBuilder(std::string name, std::shared_ptr<const Model> model);

  void add_ranks(const RankSet& ranks);
  /// Throws InvalidArgumentError or NotFoundError for a tensor that cannot be.
  void add(const RankSet& ranks, ExplicitTensor tensor, const std::vector<NamedPlacedBox>& parts);
  void omit(const std::string& tensor);
  /// Throws InvalidArgumentError if called twice, and for values that cannot be stored so.
  std::shared_ptr<const Layout> finish();

 private:
  void check_open() const;
  TensorId tensor(const std::string& name) const;
  PlacedBox placed(const NamedPlacedBox& part, const Dims& shape, const std::string& where) const;

  std::string name_;
  std::shared_ptr<const Model> model_;
  LayoutBuilder builder_;
  ExplicitSlots slots_{builder_};
  std::set<std::pair<Rank, std::string>> names_;
  bool finished_ = false;
};

}  // namespace reshard::python
