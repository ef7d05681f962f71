// SPDX-License-Identifier: Apache-2.0
// The class SessionReport: what a refit did, as attributes, a dict, rows and a table.
#include <fmt/format.h>

#include "python/src/values.h"
#include "reshard/base/number_text.h"
#include "reshard/refit/session_report.h"

namespace reshard::python {
namespace {

struct PhaseTime {
  const char* name;
  const char* text;  ///< what it is.
  double SessionReport::* seconds;
};

constexpr PhaseTime kPhases[] = {
    {"begin", "until all ranks had called refit() and agreed", &SessionReport::begin_seconds},
    {"plan", "planning anew; 0 if nothing changed", &SessionReport::plan_seconds},
    {"move", "until all ranks' bytes had arrived, conversions on the way included",
     &SessionReport::move_seconds},
    {"check", "verification", &SessionReport::check_seconds},
    {"commit", "until all ranks had committed", &SessionReport::commit_seconds},
};

/// Parts of the move.
constexpr PhaseTime kParts[] = {
    {"wait", "of the move: until the sources could be read", &SessionReport::wait_seconds},
    {"finish", "of the move: from when this rank's bytes were in place until all ranks' were",
     &SessionReport::finish_seconds},
    {"pause",
     "in which readers of this rank's target had to wait: in place, from the first change until "
     "the "
     "new version was whole; doubled, while on_phase('committed') took them to the other copy",
     &SessionReport::pause_seconds},
    {"snapshot", "before all phases: copying the sources, with snapshot=True",
     &SessionReport::snapshot_seconds},
};

struct Amount {
  const char* name;
  const char* text;
  Index SessionReport::* amount;
};

constexpr Amount kAmounts[] = {
    {"bytes",
     "Delivered to this rank's target, in the form in which it stores them; 0 without a target, as "
     "on a trainer: see `sent`.",
     &SessionReport::bytes},
    {"sent", "Bytes to other ranks, in the form in which they travel.", &SessionReport::sent},
    {"received", "Bytes from other ranks, in the form in which they travel.",
     &SessionReport::received},
    {"copied", "Bytes within this rank, in the form in which they travel.", &SessionReport::copied},
    {"copies", "Memory copies of the move, after coalescing.", &SessionReport::copies},
    {"messages", "Sent and received by this rank; 0 on the direct path.", &SessionReport::messages},
};

nb::dict dict_of(const SessionReport& report) {
  nb::dict out;
  out["version"] = report.version;
  out["seconds"] = report.seconds;
  for (const PhaseTime& phase : kPhases)
    out[fmt::format("{}_seconds", phase.name).c_str()] = report.*phase.seconds;
  for (const PhaseTime& part : kParts)
    out[fmt::format("{}_seconds", part.name).c_str()] = report.*part.seconds;
  for (const Amount& amount : kAmounts) out[amount.name] = report.*amount.amount;
  out["transfer_seconds"] = report.transfer_seconds();
  out["gigabytes_per_second"] = report.gigabytes_per_second();
  return out;
}

nb::list rows_of(const SessionReport& report) {
  nb::list out;
  for (const PhaseTime& phase : kPhases) {
    nb::dict row;
    row["version"] = report.version;
    row["phase"] = phase.name;
    row["seconds"] = report.*phase.seconds;
    out.append(row);
  }
  return out;
}

/// The first line of a report; a rank without a target says what it sent.
std::string head_of(const SessionReport& report) {
  const bool sends_only = report.bytes == 0 && report.sent > 0;
  return fmt::format("version {}: {}{} in {}, {:.2f} GB/s while they moved ({})", report.version,
                     sends_only ? "sent " : "", human_bytes(report.moved()),
                     human_seconds(report.seconds), report.gigabytes_per_second(),
                     human_seconds(report.transfer_seconds()));
}

std::string table_of(const SessionReport& report) {
  std::string out = head_of(report) + "\n";
  for (const PhaseTime& phase : kPhases) {
    const double seconds = report.*phase.seconds;
    if (seconds > 0)
      out += fmt::format("  {:<8}{:>10}  {:>3.0f} %\n", phase.name, human_seconds(seconds),
                         report.seconds > 0 ? 100 * seconds / report.seconds : 0);
  }
  return out + fmt::format("  sent {}, received {}, copied {} here; {} copies, {} messages",
                           human_bytes(report.sent), human_bytes(report.received),
                           human_bytes(report.copied), report.copies, report.messages);
}

std::string html_of(const SessionReport& report) {
  std::string out =
      fmt::format("<b>{}</b><table><tr><th>phase</th><th>time</th><th></th></tr>", head_of(report));
  for (const PhaseTime& phase : kPhases) {
    const double seconds = report.*phase.seconds;
    const double share = report.seconds > 0 ? 100 * seconds / report.seconds : 0;
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td><div style=\"width:{:.0f}px;height:0.8em;"
        "background:#4a7ebb\"></div></td></tr>",
        phase.name, human_seconds(seconds), 2 * share);
  }
  return out + "</table>";
}

}  // namespace

void bind_report(nb::module_& m) {
  nb::class_<SessionReport> report(m, "SessionReport",
                                   R"(What one refit did on this rank.

Times are in seconds, sizes in bytes. print(report) is a table of the phases; report.dict() has all
values, report.rows() one row for each phase, for pandas.DataFrame(report.rows()).)");
  report.def_ro("version", &SessionReport::version, "Of all targets now.")
      .def_ro("seconds", &SessionReport::seconds, "Of all phases.");
  for (const auto& phases :
       {std::span<const PhaseTime>(kPhases), std::span<const PhaseTime>(kParts)})
    for (const PhaseTime& phase : phases)
      report.def_ro(fmt::format("{}_seconds", phase.name).c_str(), phase.seconds, phase.text);
  for (const Amount& amount : kAmounts) report.def_ro(amount.name, amount.amount, amount.text);
  report
      .def_prop_ro(
          "transfer_seconds", &SessionReport::transfer_seconds,
          "The part of move_seconds in which this rank's bytes moved; without a target, in "
          "which anybody's did.")
      .def_prop_ro("gigabytes_per_second", &SessionReport::gigabytes_per_second,
                   "10^9 bytes delivered to this rank, or without a target sent by it, per second "
                   "of transfer_seconds.")
      .def("dict", &dict_of, nb::sig("def dict(self) -> builtins.dict[str, int | float]"),
           "{name: value} of all attributes.")
      .def("rows", &rows_of,
           nb::sig("def rows(self) -> list[builtins.dict[str, int | float | str]]"),
           "A dict with version, phase and seconds for each phase, in order.")
      .def("table", &table_of, "The same as str().")
      .def("__str__", &table_of)
      .def("_repr_html_", &html_of)
      .def("__repr__",
           [](const SessionReport& x) { return fmt::format("<SessionReport: {}>", head_of(x)); });
  nb::class_<PeerVolume>(m, "PeerVolume", "Bytes to and from one other rank in each refit.")
      .def_prop_ro(
          "peer", [](const PeerVolume& x) { return x.peer; }, "The other rank.")
      .def_ro("sent", &PeerVolume::sent, "Bytes to it.")
      .def_ro("received", &PeerVolume::received, "Bytes from it.")
      .def("__repr__", [](const PeerVolume& x) {
        return fmt::format("<PeerVolume: rank {}, {} sent, {} received>", x.peer.value(),
                           human_bytes(x.sent), human_bytes(x.received));
      });
  nb::class_<ConversionCounts>(m, "ConversionCounts",
                               "How many canonical tensors take which route; equal on all ranks.")
      .def_ro("direct", &ConversionCounts::direct, "Move unchanged or cast, from memory to memory.")
      .def_ro("at_sender", &ConversionCounts::at_sender, "Converted by the sender.")
      .def_ro("at_receiver", &ConversionCounts::at_receiver, "Converted by the receiver.")
      .def_ro("between", &ConversionCounts::between,
              "Gathered whole on one rank and quantised there: both sides cut blocks.")
      .def_ro("fell_back", &ConversionCounts::fell_back,
              "Of all: the sender should have quantised them, but could not.")
      .def("__repr__", [](const ConversionCounts& x) {
        return fmt::format(
            "<ConversionCounts: {} direct, {} at sender, {} at receiver, {} between, {} fell back>",
            x.direct, x.at_sender, x.at_receiver, x.between, x.fell_back);
      });
  m.def("copy_ceiling", &copy_ceiling, nb::arg("threads") = 1, nb::call_guard<Unlocked>(),
        "The speed of a plain copy with this many threads (0: one per core), in 10^9 bytes per "
        "second: the most that a refit inside this machine can reach. The first call measures it "
        "for half a second, with 512 MiB of memory.");
}

}  // namespace reshard::python
