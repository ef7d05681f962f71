// SPDX-License-Identifier: Apache-2.0
// Binds FullTensors: the layout of the parts of full tensors that live ranks report.
#include "reshard/model/reported/full_tensors.h"

#include <fmt/format.h>

#include "python/src/layout.h"

namespace reshard::python {
namespace {

/// reshard.live's Held: name, name of the full tensor, dtype, its shape, and runs by dimension.
using SaidTensor = std::tuple<std::string, std::string, std::string, std::vector<Index>,
                              std::vector<std::vector<std::pair<Index, Index>>>>;

ReportedTensor held_of(const SaidTensor& said) {
  const auto& [name, whole, dtype, shape, runs] = said;
  const auto known = dtype_from_name(dtype);
  if (!known)
    raise(Code::invalid_argument,
          fmt::format("'{}': '{}' is no dtype of safetensors", name, dtype));
  ReportedTensor held{.name = name,
                      .whole = whole,
                      .dtype = *known,
                      .shape = shape_of(shape, fmt::format("'{}'", name)),
                      .runs = {}};
  for (const auto& of_dim : runs) {
    auto& here = held.runs.emplace_back();
    for (const auto& [begin, end] : of_dim) {
      if (begin < 0 || end < begin)
        raise(Code::invalid_argument, fmt::format("'{}': a run of [{}, {})", name, begin, end));
      here.emplace_back(begin, end);
    }
  }
  return held;
}

/// reshard._core.FullTensors
struct ModelFullTensors {
  std::shared_ptr<const Model> model;
  FullTensors full;

  ModelFullTensors(std::shared_ptr<const Model> of,
                   const std::vector<std::shared_ptr<const Layout>>& layouts)
      : model(std::move(of)), full(model->name, model->tensors) {
    for (const auto& layout : layouts) {
      const auto& stored = layout->side.stored();
      if (stored->model().digest() != model->tensors->digest())
        raise(Code::invalid_argument,
              fmt::format("{} is not a layout of the model '{}'", stored->name(), model->name));
      full.add(stored);
    }
  }

  std::shared_ptr<const Layout> layout(
      const std::string& name, const std::vector<std::pair<int, std::vector<SaidTensor>>>& ranks,
      const std::string& hint) const {
    std::vector<RankTensors> held;
    for (const auto& [rank, tensors] : ranks) {
      RankTensors& here = held.emplace_back(RankTensors{Rank(rank), {}});
      for (const SaidTensor& said : tensors) here.tensors.push_back(held_of(said));
    }
    LayoutSide side{std::make_shared<const ModelLayout>(unwrap(full.layout(name, held, hint)))};
    return std::make_shared<const Layout>(Layout{model, std::move(side)});
  }
};

}  // namespace

void bind_full_tensors(nb::module_& m) {
  nb::class_<ModelFullTensors>(
      m, "FullTensors",
      R"(The full tensors of a framework, by name: what each is made of in tensors of a model.

`layouts` are of one rank over the model, whose local tensors are full tensors; the first that has a
name counts, and the model's own tensors come last.)")
      .def(nb::init<std::shared_ptr<const Model>,
                    const std::vector<std::shared_ptr<const Layout>>&>(),
           nb::arg("model"), nb::arg("layouts"))
      .def("__contains__",
           [](const ModelFullTensors& x, const std::string& name) { return x.full.contains(name); })
      .def("layout", &ModelFullTensors::layout, nb::arg("name"), nb::arg("ranks"), nb::arg("hint"),
           R"(The layout of parts that ranks hold.

`ranks` are (rank, tensors); a tensor is (name, full tensor, dtype, its shape, runs): the dtype as in
safetensors, and by dimension the indices that the rank holds, as (begin, end), in the order in which
it stores them. Raises NotFoundError for a full tensor that is not known, with `hint`,
InvalidArgumentError for one of another shape.)");
}

}  // namespace reshard::python
