// SPDX-License-Identifier: Apache-2.0
#include "python/src/plan.h"

#include <fmt/format.h>

#include "reshard/base/hash.h"

namespace reshard::python {

const PlanSummary& Plan::summary() const {
  std::call_once(summarised_, [&] { summary_ = summarise(planner()); });
  return summary_;
}

namespace {

std::shared_ptr<Plan> plan_of(std::shared_ptr<const Layout> source,
                              std::shared_ptr<const Layout> target, const Names& ignore,
                              const Names& only) {
  if (source->side.values->model().digest() != target->side.values->model().digest())
    raise(Code::invalid_argument,
          fmt::format("source is a layout of {}, target one of {}, whose tensors differ",
                      source->model->name, target->model->name));
  LayoutPair pair = unwrap(pair_sides(*source->model, source->side, target->side,
                                      {.ignore = ignore.names, .only = only.names}));
  return std::make_shared<Plan>(std::move(source), std::move(target), std::move(pair));
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Plan>(m, "Plan")
      .def_prop_ro("digest", [](const Plan& x) { return hex(x.planner().digest()); })
      .def_prop_ro(
          "bytes_wire", [](const Plan& x) { return x.summary().bytes_wire; },
          nb::call_guard<nb::gil_scoped_release>());
  m.def("plan", &plan_of, nb::arg("source"), nb::arg("target"), nb::kw_only(),
        nb::arg("ignore") = nb::tuple(), nb::arg("only") = nb::tuple(),
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace reshard::python
