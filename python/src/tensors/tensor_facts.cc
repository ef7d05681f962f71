// SPDX-License-Identifier: Apache-2.0
// The class TensorFacts: whether many tensors are still where, and what, they were.
#include <vector>

#include "python/src/tensors/tensors.h"

namespace reshard::python {
namespace {

/// The memory, shapes, strides and dtypes of tensors at one moment. Keeps none of them.
class TensorFacts {
 public:
  explicit TensorFacts(const nb::typed<nb::sequence, nb::object>& tensors) {
    TypeFacts types;
    views_.reserve(nb::len(tensors));
    for (const nb::handle tensor : tensors) views_.push_back(look(tensor, types, true));
  }

  bool same(const nb::typed<nb::sequence, nb::object>& tensors) const {
    if (nb::len(tensors) != views_.size()) return false;
    TypeFacts types;
    std::size_t i = 0;
    for (const nb::handle tensor : tensors)
      if (!look(tensor, types, false).same_as(views_[i++])) return false;
    return true;
  }

 private:
  static TensorView look(nb::handle tensor, TypeFacts& types, bool checks) {
    LookOptions options;
    options.types = &types;
    options.checks = checks;
    return PinnedTensor::look(tensor, {}, options);
  }

  std::vector<TensorView> views_;
};

}  // namespace

void bind_tensor_facts(nb::module_& m) {
  nb::class_<TensorFacts>(m, "TensorFacts",
                          R"(The memory, shapes, strides and dtypes of tensors at one moment.

Internal. Keeps none of the tensors.)")
      .def(nb::init<const nb::typed<nb::sequence, nb::object>&>(), nb::arg("tensors"),
           "Raises reshard.Error for a tensor whose memory cannot be looked at.")
      .def("same", &TensorFacts::same, nb::arg("tensors"),
           "Whether these tensors, in this order, have the same now. Raises as the constructor.");
}

}  // namespace reshard::python
