// SPDX-License-Identifier: Apache-2.0
// Plan.simulate(): how long a plan takes on a cluster that need not exist.
#include <fmt/format.h>

#include <algorithm>

#include "python/src/plans/plan.h"
#include "reshard/base/number_text.h"
#include "reshard/io/cluster_file.h"
#include "reshard/io/example_configs.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/plan/summary.h"
#include "reshard/simulate/cluster_places.h"
#include "reshard/simulate/predict.h"

namespace reshard::python {
namespace {

/// The class reshard.Prediction.
struct SimulatedPlan {
  std::string cluster;
  Prediction prediction;
  Index bytes = 0;  ///< delivered.
  bool relays = false;

  const Simulation& simulation() const { return prediction.simulation; }
  /// False if the cluster gives no rate for anything that moves bytes here.
  bool has_rates() const { return bytes == 0 || simulation().bound_seconds > 0; }
};

/// A cluster of its file, name or keys.
ClusterSpec cluster_of(const nb::object& cluster) {
  if (nb::isinstance<nb::dict>(cluster)) {
    std::string text;
    try {
      text = nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(cluster));
    } catch (nb::python_error& error) {
      if (is_fatal(error)) throw;
      throw nb::type_error(
          fmt::format("cluster cannot be written as JSON: {}", nb::str(error.value()).c_str())
              .c_str());
    }
    return unwrap(parse_cluster(text));
  }
  const nb::object path = nb::steal(PyOS_FSPath(cluster.ptr()));
  if (!path.is_valid()) clear_ordinary();
  if (!path.is_valid() || !nb::isinstance<nb::str>(path))
    throw nb::type_error(fmt::format("cluster must be a name, a path or a dict, not {}",
                                     nb::type_name(cluster.type()).c_str())
                             .c_str());
  return unwrap(read_cluster(nb::cast<std::string>(path)));
}

RouteMode routes_of(const std::string& routes) {
  if (routes == "direct") return RouteMode::direct;
  if (routes == "auto") return RouteMode::automatic;
  raise(Code::invalid_argument,
        fmt::format("routes='{}': must be one of 'direct', 'auto'", routes));
}

SimulatedPlan simulate(const Plan& plan, const nb::object& cluster, const std::string& routes) {
  const ClusterSpec spec = cluster_of(cluster);
  const RouteMode mode = routes_of(routes);
  return interruptible([&] {
    std::shared_ptr<const Planner> planner = plan.pair().planner;
    PlanSummary sum;
    if (mode == RouteMode::automatic) {
      const PairOptions options{
          .ignore = plan.pair().ignore, .only = plan.only(), .relays = relays_on(spec, mode)};
      planner = unwrap(pair_sides(*plan.source()->model, plan.source()->side, plan.target()->side,
                                  options))
                    .planner;
    }
    sum = summarise(*planner, usable_cores(), true);
    SimulatedPlan out{spec.name, unwrap(prediction_of(spec, *planner, sum)), sum.bytes_total,
                      planner->relays() && planner->relays()->used};
    return out;
  });
}

nb::object slowest_of(const SimulatedPlan& x) {
  const auto& ranks = x.simulation().ranks;
  if (ranks.empty()) return nb::none();
  return nb::cast(std::ranges::max_element(ranks, {}, &RankSeconds::moved)->rank.value());
}

nb::list rows_of(const SimulatedPlan& x) {
  nb::list out;
  for (const RankSeconds& rank : x.simulation().ranks) {
    nb::dict row;
    row["rank"] = rank.rank.value();
    row["first_seconds"] = rank.first;
    row["moved_seconds"] = rank.moved;
    out.append(row);
  }
  return out;
}

std::string text_of(const SimulatedPlan& x) {
  const Simulation& s = x.simulation();
  if (!x.has_rates())
    return fmt::format("on {}: unknown, as the cluster gives no rate for what moves these bytes",
                       x.cluster);
  std::string out =
      fmt::format("on {}: {} predicted, {} bound by {}", x.cluster,
                  human_seconds(s.predicted_seconds), human_seconds(s.bound_seconds), s.bound_by);
  if (!s.busiest_link.empty())
    out += fmt::format("; busiest link {}, {}, {:.0f} % used", s.busiest_link,
                       human_bytes(static_cast<Index>(s.link_bytes)), 100 * s.link_use);
  return out;
}

constexpr const char* kSimulateText =
    R"(Predicts how long the plan takes on a cluster, without a byte or a machine of it.

    plan.simulate("dgx-h100-400g").predicted_seconds

cluster  a name of cluster_names(), a JSON file, or its keys as a dict (docs/simulation.md)
routes   "direct", or "auto": replicas relay where the cluster's network then carries less (docs/routes.md)

Deterministic. Small plans are simulated step by step, larger ones as traffic: see `of`. Raises NotFoundError
for a name or file that is not there, CorruptError with the key for a cluster that cannot be.)";

}  // namespace

void bind_simulation(nb::module_& m) {
  nb::class_<SimulatedPlan>(m, "Prediction",
                            "How long a plan takes on a cluster, and what bounds it.")
      .def_ro("cluster", &SimulatedPlan::cluster, "The cluster's name.")
      .def_prop_ro(
          "predicted_seconds",
          [](const SimulatedPlan& x) { return x.simulation().predicted_seconds; },
          "Until every rank is done.")
      .def_prop_ro(
          "bound_seconds", [](const SimulatedPlan& x) { return x.simulation().bound_seconds; },
          "The time that the busiest resource needs, which no order of the same work beats.")
      .def_prop_ro(
          "bound_by", [](const SimulatedPlan& x) { return x.simulation().bound_by; },
          "That resource.")
      .def_prop_ro(
          "busiest_link", [](const SimulatedPlan& x) { return x.simulation().busiest_link; },
          "The busiest of NVLink, PCIe, network interfaces and uplinks; empty if none is used.")
      .def_prop_ro(
          "busiest_link_bytes", [](const SimulatedPlan& x) { return x.simulation().link_bytes; },
          "Bytes over it.")
      .def_prop_ro(
          "busiest_link_use", [](const SimulatedPlan& x) { return x.simulation().link_use; },
          "The share of what it could carry in that time, from 0 to 1.")
      .def_prop_ro(
          "of",
          [](const SimulatedPlan& x) { return x.prediction.of_programs ? "programs" : "traffic"; },
          "\"programs\": simulated step by step; \"traffic\": as pairs of ranks.")
      .def_prop_ro("has_rates", &SimulatedPlan::has_rates,
                   "False if the cluster gives no rate for what moves these bytes: seconds count "
                   "latencies alone then.")
      .def_ro("relays", &SimulatedPlan::relays, "True if replicas relay.")
      .def_prop_ro("slowest_rank", &slowest_of, nb::sig("def slowest_rank(self) -> int | None"),
                   "The rank whose last bytes move last.")
      .def("rows", &rows_of, nb::sig("def rows(self) -> list[builtins.dict[str, int | float]]"),
           "A dict with rank, first_seconds (until its first bytes have moved) and moved_seconds "
           "(its last) for each rank; rank -1 is all ranks of one process.")
      .def("__str__", &text_of)
      .def("__repr__",
           [](const SimulatedPlan& x) { return fmt::format("<Prediction {}>", text_of(x)); });
  nb::borrow<nb::class_<Plan>>(m.attr("Plan"))
      .def("simulate", &simulate, nb::arg("cluster"), nb::kw_only(), nb::arg("routes") = "direct",
           nb::sig("def simulate(self, cluster: str | os.PathLike[str] | dict[str, typing.Any], *, "
                   "routes: typing.Literal['direct', 'auto'] = 'direct') -> Prediction"),
           kSimulateText);
  m.def("cluster_names", &example_cluster_names,
        "The names of the clusters that come with reshard, for Plan.simulate().");
}

}  // namespace reshard::python
