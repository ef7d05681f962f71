// SPDX-License-Identifier: Apache-2.0
#include "python/src/plans/plan.h"

#include <fmt/format.h>

#include "reshard/base/hash.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/conversion_routes.h"
#include "reshard/io/json/plan_json.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/plan/check.h"
#include "reshard/plan/conversions.h"

namespace reshard::python {

const PlanSummary& Plan::summary() const {
  std::call_once(summarised_, [&] { summary_ = summarise(planner(), usable_cores()); });
  return summary_;
}

const Traffic& Plan::traffic() const {
  std::call_once(counted_, [&] {
    const std::vector<Rank> members = planner().ranks().members();
    const Index ranks = members.empty() ? 0 : members.back().value() + 1;
    if (ranks > kMaxTrafficRanks)
      raise(Code::unsupported,
            fmt::format("a matrix of {} x {} ranks; at most {} are supported; plan.rank(r) has the "
                        "peers of one",
                        ranks, ranks, kMaxTrafficRanks));
    Traffic traffic{ranks, std::vector<Index>(static_cast<std::size_t>(ranks * ranks))};
    planner().target().ranks().for_each([&](Rank dst) {
      planner().for_each_delivery(dst, [&](const Transfer& t) {
        traffic.bytes[t.src.index() * static_cast<std::size_t>(ranks) + dst.index()] +=
            t.box.volume() * planner().element_bits(t.tensor) / 8;
      });
    });
    traffic_ = std::move(traffic);
  });
  return traffic_;
}

namespace {

using SharedPlan = std::shared_ptr<const Plan>;

SharedPlan plan_of(std::shared_ptr<const Layout> source, std::shared_ptr<const Layout> target,
                   const Names& ignore, const Names& only) {
  if (source->side.values->model().digest() != target->side.values->model().digest())
    raise(Code::invalid_argument,
          fmt::format("source is a layout of {}, target one of {}, whose tensors differ",
                      source->model->name, target->model->name));
  return interruptible([&] {
    LayoutPair pair = unwrap(pair_sides(*source->model, source->side, target->side,
                                        {.ignore = ignore.names, .only = only.names}));
    auto moved = matching_names(pair.source->model(), only.names);
    return SharedPlan(std::make_shared<Plan>(source, target, std::move(pair), std::move(moved)));
  });
}

/// The plan's totals, which are added up on first use.
const PlanSummary& totals(const Plan& plan) {
  interruptible([&] { plan.summary(); });
  return plan.summary();
}

/// A memoryview [ranks, ranks] of int64.
nb::object traffic_of(const Plan& plan) {
  interruptible([&] { plan.traffic(); });
  const Traffic& traffic = plan.traffic();
  const nb::bytes copy(traffic.bytes.data(), traffic.bytes.size() * sizeof(Index));
  const nb::object view = nb::steal(PyMemoryView_FromObject(copy.ptr()));
  if (!view.is_valid()) throw nb::python_error();
  if (traffic.ranks == 0) return view.attr("cast")("q");
  return view.attr("cast")("q", nb::make_tuple(traffic.ranks, traffic.ranks));
}

std::string graph_of(const Plan& plan) { return to_dot(plan.planner()); }

std::string json_of(const Plan& plan) {
  const PlanCost cost{plan.pair().planner_seconds, 0};
  Json::Object object = plan_object(plan.summary(), plan.planner(), cost);
  std::erase_if(object, [](const Json::Member& m) { return m.key == "peak_rss_bytes"; });
  Json::Array notes;
  for (const std::string& note : plan.pair().notes) notes.emplace_back(note);
  object.push_back({"notes", Json(std::move(notes))});
  return Json(std::move(object)).dump(true);
}

void check_plan(const Plan& plan, std::optional<RankArgument> rank) {
  const Planner& planner = plan.planner();
  const auto check = [&](Rank r) {
    unwrap(check_rank_plan(planner, planner.rank_plan(r), plan.pair().ignore, plan.only()));
  };
  if (rank) {
    const Rank one = rank_of(*rank, planner.ranks(), "either layout");
    return without_gil([&] { check(one); });
  }
  interruptible([&] { planner.ranks().for_each(check); });
}

std::string text_of(const Plan& plan) {
  return fmt::format("<Plan '{}' -> '{}': {} delivered, digest {}>", plan.source()->stored().name(),
                     plan.target()->stored().name(), human_bytes(totals(plan).bytes_total),
                     hex(plan.planner().digest()));
}

void bind_totals(nb::class_<Plan>& plan) {
  const auto total = [&]<class T>(const char* name, T PlanSummary::* field, const char* doc) {
    plan.def_prop_ro(name, [field](const Plan& x) { return totals(x).*field; }, doc);
  };
  total("num_ranks", &PlanSummary::ranks, "The number of ranks of both layouts together.");
  total("bytes_total", &PlanSummary::bytes_total,
        "Bytes delivered to the target's ranks, over the wire and locally.");
  total("bytes_wire", &PlanSummary::bytes_wire, "Bytes from one rank to another.");
  total("bytes_local", &PlanSummary::bytes_local, "Bytes from a rank to itself.");
  total("messages", &PlanSummary::messages, "Pairs of distinct ranks with bytes between them.");
  total("transfers", &PlanSummary::transfers, "Boxes moved, with local copies.");
  total("max_egress_bytes", &PlanSummary::max_egress_bytes, "Bytes of the busiest sender.");
  total("max_ingress_bytes", &PlanSummary::max_ingress_bytes, "Bytes of the busiest receiver.");
  total("optimal_max_egress_bytes", &PlanSummary::optimal_max_egress_bytes,
        "The least bytes that the busiest sender can have, given who holds what.");
  total("busiest_sender", &PlanSummary::busiest_sender, "Its rank.");
  total("busiest_receiver", &PlanSummary::busiest_receiver, "Its rank.");
  total("egress", &PlanSummary::egress, "Bytes sent to other ranks, by rank, from rank 0.");
  total("ingress", &PlanSummary::ingress, "Bytes received from other ranks, by rank, from rank 0.");
}

void bind_contents(nb::class_<Plan>& plan) {
  plan.def_prop_ro("source", &Plan::source, "The layout that is sent from.")
      .def_prop_ro("target", &Plan::target, "The layout that is sent to.")
      .def_prop_ro(
          "tensors", [](const Plan& x) { return x.planner().source().shared_model(); },
          "The canonical tensors that transfers are boxes of.")
      .def_prop_ro(
          "ranks", [](const Plan& x) { return x.planner().ranks(); },
          "The ranks of both layouts, ascending.")
      .def_prop_ro(
          "digest", [](const Plan& x) { return hex(x.planner().digest()); },
          "16 hexadecimal digits, equal on all ranks if and only if their plans are equal.")
      .def_prop_ro(
          "seconds", [](const Plan& x) { return x.pair().planner_seconds; },
          "How long planning took, without the totals.")
      .def_prop_ro(
          "ignored", [](const Plan& x) { return x.pair().ignore; },
          "Names of the tensors that one side may lack.")
      .def_prop_ro(
          "omitted", [](const Plan& x) { return omitted_by(x.planner()); },
          "Names of the source's tensors that the target does not hold, in order.")
      .def_prop_ro(
          "notes", [](const Plan& x) { return x.pair().notes; },
          "What the layouts chose by themselves, and how quantised tensors are treated.")
      .def_prop_ro(
          "conversions", [](const Plan& x) { return conversions_of(x.planner()); },
          "Changes of dtype or of values, as ConversionUse; empty if no bits change.")
      .def_prop_ro(
          "quantises", [](const Plan& x) { return x.pair().quantises(); },
          "True if values are quantised or dequantised on the way. Bytes then count plain values.")
      .def_prop_ro(
          "routes",
          [](const Plan& x) {
            if (!x.pair().quantises()) return std::vector<ConversionRow>{};
            return unwrap(conversion_rows(x.pair(), ConversionSide::receiver));
          },
          "How tensors are quantised or dequantised, as ConversionRow; empty if none is.")
      .def_prop_ro("traffic", &traffic_of, nb::sig("def traffic(self) -> memoryview"),
                   R"(Bytes from rank to rank: a memoryview of int64, [source rank, target rank].

The diagonal is copied locally. `numpy.asarray(plan.traffic)` shares its memory. Raises
UnsupportedError for more than 4096 ranks.)");
}

void bind_methods(nb::class_<Plan>& plan) {
  plan.def("rank", &rank_plan_of, nb::arg("rank"), nb::sig("def rank(self, rank: int) -> RankPlan"),
           R"(The transfers of one rank.

Made alone, without those of the others. Raises InvalidArgumentError for a rank in neither layout.)")
      .def(
          "moves",
          [](const Plan& x, const std::string& tensor) {
            const auto id = x.planner().source().model().find(tensor);
            if (!id) raise(Code::not_found, fmt::format("the model has no tensor '{}'", tensor));
            return x.planner().moves(*id);
          },
          nb::arg("tensor"), "True if the plan moves this canonical tensor.")
      .def("check", &check_plan, nb::arg("rank") = nb::none(),
           R"(Checks the part of one rank, or all of them, against the layouts alone.

Every element of the target arrives exactly once, every sender holds what it sends, and nothing that
a rank holds comes from another. Raises InvalidArgumentError with rank, tensor and box. Slow for
large plans.)")
      .def("to_dot", &graph_of, nb::call_guard<nb::gil_scoped_release>(),
           "A Graphviz digraph: senders, receivers, and the bytes between them. Neighbouring ranks "
           "share a node where a side has more than eight.")
      .def("to_json", &json_of, nb::call_guard<nb::gil_scoped_release>(),
           "The totals as a JSON object, with the keys of `reshard plan --json`.")
      .def(
          "plot",
          [](const nb::object& self, const nb::object& path, Index host) {
            return nb::module_::import_("reshard._figures.plot").attr("plot_plan")(self, path, host);
          },
          nb::arg("path") = nb::none(), nb::kw_only(), nb::arg("ranks_per_host") = 8,
          nb::sig("def plot(self, path: str | os.PathLike[str] | None = None, *, "
                  "ranks_per_host: int = 8) -> typing.Any"),
          R"(Draws who sends to whom, and each rank's bytes against the bound, with matplotlib.

Lines part the hosts. Where ranks are too many to draw, neighbours share a cell or a bar, whole hosts
if possible: a cell has their sum, a bar the most of any of them. Returns the figure, and saves it if
`path` is given. Raises ImportError without matplotlib.)")
      .def(
          "__str__",
          [](const nb::object& self) {
            return nb::module_::import_("reshard._tables").attr("plan_text")(self);
          },
          nb::sig("def __str__(self) -> str"))
      .def(
          "_repr_html_",
          [](const nb::object& self) {
            return nb::module_::import_("reshard._figures.html").attr("plan_html")(self);
          },
          nb::sig("def _repr_html_(self) -> str"))
      .def("__repr__", &text_of);
}

void bind_conversions(nb::module_& m) {
  nb::class_<ConversionUse>(m, "ConversionUse", "The tensors of a plan with the same conversion.")
      .def_prop_ro(
          "source", [](const ConversionUse& x) { return to_string(x.conversion.from); },
          "The stored form on the source, such as \"F32\" or \"F32 as negated_exp\".")
      .def_prop_ro(
          "target", [](const ConversionUse& x) { return to_string(x.conversion.to); },
          "The stored form on the target.")
      .def_ro("tensors", &ConversionUse::tensors, "Their number.")
      .def_ro("elements", &ConversionUse::elements, "Canonical elements, each counted once.")
      .def_ro("loses_precision", &ConversionUse::loses_precision, "True if a value may be rounded.")
      .def_ro("example", &ConversionUse::example, "The name of the first.")
      .def("__str__", [](const ConversionUse& x) { return to_string(x); })
      .def("__repr__",
           [](const ConversionUse& x) { return fmt::format("<ConversionUse: {}>", to_string(x)); });
  nb::class_<ConversionRow>(m, "ConversionRow",
                            "The tensors of a plan that are quantised or dequantised alike.")
      .def_ro("route", &ConversionRow::route, "A name, such as \"quantise_at_receiver\".")
      .def_ro("how", &ConversionRow::how, "The same in words.")
      .def_ro("tensors", &ConversionRow::tensors, "Their number.")
      .def_ro("bytes_from", &ConversionRow::bytes_from, "Of one copy of them at the source.")
      .def_ro("bytes_to", &ConversionRow::bytes_to, "Of one copy of them at the target.")
      .def_ro("example", &ConversionRow::example, "The name of the first.")
      .def("__repr__", [](const ConversionRow& x) {
        return fmt::format("<ConversionRow {}: {}>", x.how, plural(x.tensors, "tensor"));
      });
}

}  // namespace

void bind_plan(nb::module_& m) {
  bind_conversions(m);
  nb::class_<Plan> plan(m, "Plan",
                        R"(The plan of a refit between two layouts: who sends what to whom.

A function of the two layouts and the options alone: all ranks make the same plan, and `digest` tells
whether they did. Made by plan(), without weights. Immutable; may be used from any thread. The totals
are computed when they are first asked for.)");
  bind_totals(plan);
  bind_contents(plan);
  bind_methods(plan);
  m.def("plan", &plan_of, nb::arg("source"), nb::arg("target"), nb::kw_only(),
        nb::arg("ignore") = nb::tuple(), nb::arg("only") = nb::tuple(), R"(Plans how weights move.

source  the layout in which ranks hold the weights
target  the layout in which ranks shall hold them, of the same model
ignore  patterns ("*" any characters, "#" digits) of tensors that one side may lack; any other tensor
        on one side only is an error
only    patterns of the tensors to move; by default all

Reads no weights. Raises InvalidArgumentError, with the names, if the layouts are not of one model or
the target holds what the source lacks; NotFoundError for a pattern that matches nothing.)");
}

}  // namespace reshard::python
