// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "python/src/plans/plan.h"
#include "reshard/base/number_text.h"
#include "reshard/io/json/plan_json.h"

namespace reshard::python {
namespace {

/// A Transfer with its plan, which has the name of its tensor; reshard.Transfer in Python.
struct NamedTransfer {
  std::shared_ptr<const Plan> plan;
  Transfer transfer;

  const std::string& tensor() const {
    return plan->planner().source().model()[transfer.tensor].name;
  }
  Index bytes() const {
    return transfer.box.volume() * plan->planner().element_bits(transfer.tensor) / 8;
  }
};

/// A RankPlan with its totals; reshard.RankPlan in Python.
struct PartOfRank {
  std::shared_ptr<const Plan> plan;
  RankPlan part;
  RankSummary summary;
  nb::tuple sends, recvs, locals;
};

nb::tuple named(const std::shared_ptr<const Plan>& plan, const std::vector<Transfer>& transfers) {
  nb::list list;
  for (const Transfer& transfer : transfers) list.append(nb::cast(NamedTransfer{plan, transfer}));
  return nb::tuple(list);
}

void bind_transfer(nb::module_& m) {
  nb::class_<NamedTransfer>(m, "Transfer",
                            "A box of one canonical tensor that one rank sends to another.")
      .def_prop_ro("tensor", &NamedTransfer::tensor, "Its name.")
      .def_prop_ro(
          "src", [](const NamedTransfer& x) { return x.transfer.src; }, "The rank that sends it.")
      .def_prop_ro(
          "dst", [](const NamedTransfer& x) { return x.transfer.dst; },
          "The rank that receives it; `src` for a local copy.")
      .def_prop_ro(
          "box", [](const NamedTransfer& x) { return x.transfer.box; }, "Of the canonical tensor.")
      .def_prop_ro("bytes", &NamedTransfer::bytes, "Its size on the wire.")
      .def(
          "__eq__",
          [](const NamedTransfer& a, const nb::handle& other) {
            if (!nb::isinstance<NamedTransfer>(other)) return false;
            const auto& b = nb::cast<const NamedTransfer&>(other);
            return a.transfer.src == b.transfer.src && a.transfer.dst == b.transfer.dst &&
                   a.transfer.box == b.transfer.box && a.tensor() == b.tensor();
          },
          nb::arg().none())
      .def("__hash__",
           [](const NamedTransfer& x) {
             return nb::hash(nb::make_tuple(x.tensor(), to_string(x.transfer.box), x.transfer.src,
                                            x.transfer.dst));
           })
      .def("__repr__", [](const NamedTransfer& x) {
        return fmt::format("<Transfer {} -> {} '{}' {}, {}>", x.transfer.src.value(),
                           x.transfer.dst.value(), x.tensor(), to_string(x.transfer.box),
                           human_bytes(x.bytes()));
      });
}

void bind_rank_plan(nb::module_& m) {
  nb::class_<PartOfRank> part(m, "RankPlan", R"(The transfers of one rank.

Sends are ordered by receiver, receives by sender, and then both by tensor and box, so both ranks of
a pair list the bytes between them in the same order.)");
  part.def_prop_ro(
          "rank", [](const PartOfRank& x) { return x.part.rank; }, "Whose transfers these are.")
      .def_prop_ro(
          "sends", [](const PartOfRank& x) { return x.sends; },
          nb::sig("def sends(self) -> tuple[Transfer, ...]"), "To other ranks.")
      .def_prop_ro(
          "recvs", [](const PartOfRank& x) { return x.recvs; },
          nb::sig("def recvs(self) -> tuple[Transfer, ...]"), "From other ranks.")
      .def_prop_ro(
          "locals", [](const PartOfRank& x) { return x.locals; },
          nb::sig("def locals(self) -> tuple[Transfer, ...]"),
          "From this rank to itself, not over the wire.")
      .def_prop_ro(
          "bytes_sent", [](const PartOfRank& x) { return x.summary.bytes_sent; },
          "Bytes to other ranks.")
      .def_prop_ro(
          "bytes_received", [](const PartOfRank& x) { return x.summary.bytes_received; },
          "Bytes from other ranks.")
      .def_prop_ro(
          "bytes_local", [](const PartOfRank& x) { return x.summary.bytes_local; },
          "Bytes copied within the rank.")
      .def(
          "to_text",
          [](const PartOfRank& x, std::size_t most) {
            return to_text(x.plan->planner(), x.part, most);
          },
          nb::arg("most") = static_cast<std::size_t>(-1) >> 1,
          "One line for each transfer, at most `most` of each kind; equal plans have equal text.")
      .def(
          "__str__",
          [](const nb::object& self) {
            return nb::module_::import_("reshard._tables").attr("rank_plan_text")(self);
          },
          nb::sig("def __str__(self) -> str"))
      .def("__repr__", [](const PartOfRank& x) {
        return fmt::format(
            "<RankPlan of rank {}: sends {} to {}, receives {} from {}, copies {}>",
            x.part.rank.value(), human_bytes(x.summary.bytes_sent),
            plural(x.summary.peers_to, "rank"), human_bytes(x.summary.bytes_received),
            plural(x.summary.peers_from, "rank"), human_bytes(x.summary.bytes_local));
      });
}

}  // namespace

nb::object rank_plan_of(std::shared_ptr<const Plan> plan, RankArgument argument) {
  const Rank rank = rank_of(argument, plan->planner().ranks(), "either layout");
  PartOfRank out{plan, {}, {}, {}, {}, {}};
  out.part = without_gil([&] { return plan->planner().rank_plan(rank); });
  out.summary = summarise_rank(plan->planner(), out.part);
  out.sends = named(plan, out.part.sends);
  out.recvs = named(plan, out.part.recvs);
  out.locals = named(plan, out.part.locals);
  return nb::cast(std::move(out));
}

void bind_rank_plans(nb::module_& m) {
  bind_transfer(m);
  bind_rank_plan(m);
}

}  // namespace reshard::python
