// SPDX-License-Identifier: Apache-2.0
// Layouts from the text of layout files.
#include "python/src/layout.h"
#include "reshard/io/layout_file.h"

namespace reshard::python {
namespace {

std::shared_ptr<const Layout> explicit_layout_of(const std::string& text,
                                                 std::shared_ptr<const Model> model, Index offset) {
  const LayoutSpec spec{"explicit", "", {{"offset", std::to_string(offset)}}};
  const ExplicitLayout parsed = unwrap(parse_layout_file(text));
  LayoutSide side{std::make_shared<const ModelLayout>(
      unwrap(explicit_layout(spec, {model->tensors, model->config_or_null()}, parsed)))};
  return std::make_shared<const Layout>(Layout{std::move(model), std::move(side)});
}

}  // namespace

void bind_explicit_layout(nb::module_& m) {
  m.def("explicit_layout", &explicit_layout_of, nb::arg("text"), nb::arg("model"),
        nb::arg("offset") = 0, nb::call_guard<nb::gil_scoped_release>(),
        R"(A layout given tensor by tensor: the text of a layout file, as Layout.save() writes it.

`offset` is added to all ranks. Raises CorruptError for a text that is wrong, with the number of the
entry, InvalidArgumentError or NotFoundError if the model has other tensors.)");
}

}  // namespace reshard::python
