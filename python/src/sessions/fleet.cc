// SPDX-License-Identifier: Apache-2.0
// FleetServer and FleetMember, which the module reshard.fleet uses, and move_layout().
#include "reshard/fleet/fleet_member.h"

#include <fmt/format.h>

#include "python/src/layout.h"
#include "python/src/sessions/group.h"
#include "python/src/values.h"
#include "reshard/fleet/fleet_server.h"
#include "reshard/model/place_layouts.h"

namespace reshard::python {
namespace {

using fleet::Action, fleet::FleetMember, fleet::FleetServer, fleet::Participant;

Deadline deadline_after(const std::optional<double>& seconds) {
  return seconds ? Deadline::after(std::chrono::duration<double>(*seconds)) : Deadline::never();
}

fleet::Time time_of(double seconds) {
  return std::chrono::duration_cast<fleet::Time>(std::chrono::duration<double>(seconds));
}

ControlAddress address_of(const std::string& url, const std::string& job,
                          const std::optional<std::string>& secret,
                          const std::optional<PathArgument>& file) {
  if (secret && file) raise(Code::invalid_argument, "fleet: give secret or secret_file, not both");
  if (file) return {url, job, unwrap(Secret::from_file(file->path.string()))};
  return {url, job, secret ? unwrap(Secret::from_text(*secret)) : Secret()};
}

std::unique_ptr<FleetServer> serve(const std::string& url, const std::string& job,
                                   const std::optional<std::string>& secret,
                                   const std::optional<PathArgument>& secret_file, double gather,
                                   double round, double report) {
  return unwrap(FleetServer::serve(
      address_of(url, job, secret, secret_file),
      {.gather = time_of(gather), .round = time_of(round), .report = time_of(report)}));
}

std::unique_ptr<FleetMember> join_fleet(const std::string& url, const std::string& job,
                                        const std::optional<std::string>& secret,
                                        const std::optional<PathArgument>& secret_file,
                                        const std::string& unit, bool trains, int rank, int size,
                                        const std::string& layout, std::int64_t version,
                                        double timeout) {
  const fleet::JoinRequest request{
      .unit = unit,
      .role = trains ? fleet::Role::trainer : fleet::Role::engine,
      .rank = rank,
      .size = size,
      .layout = layout,
      .version = version,
  };
  const ControlAddress address = address_of(url, job, secret, secret_file);
  std::atomic<bool> cancelled = false;
  return interruptible(
      [&] {
        return unwrap(FleetMember::join(address, request, deadline_after(timeout), [&] {
          return cancelled ? std::string("interrupted") : std::string();
        }));
      },
      [&] { cancelled = true; });
}

std::optional<Action> next(FleetMember& member, const std::optional<double>& timeout) {
  return interruptible([&] { return unwrap(member.next(deadline_after(timeout))); },
                       [&] { member.cancel(); });
}

std::shared_ptr<Group> make_group(FleetMember& member, const Action& order,
                                  const std::string& transport, double timeout,
                                  const std::string& interface, const std::optional<int>& gpu) {
  TransportOptions options;
  options.interface = interface;
  options.gpu = gpu.value_or(-1);
  options.deadline = deadline_after(timeout);
  auto parts = interruptible([&] { return unwrap(member.make_group(order, transport, options)); },
                             [&] { member.cancel(); });
  return adopt_group(std::move(parts), transport);
}

/// The layout of a unit on its ranks in a group.
std::shared_ptr<const Layout> moved(const Layout& layout, int first) {
  auto out = std::make_shared<Layout>(layout);
  LayoutSide& side = out->side;
  if (side.quantised != nullptr) {
    side.quantised =
        std::make_shared<const QuantisedLayout>(unwrap(move_layout(*side.quantised, Rank(first))));
    side.values = side.quantised->values;
  } else {
    side.values =
        std::make_shared<const ModelLayout>(unwrap(move_layout(*side.values, Rank(first))));
  }
  return out;
}

const char* name(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::order: return "order";
    case Action::Kind::confirm: return "confirm";
    case Action::Kind::release: return "release";
    case Action::Kind::reject: return "reject";
    default: return "other";
  }
}

void bind_messages(nb::module_& m) {
  nb::class_<Participant>(m, "FleetParticipant", "A unit in a round.")
      .def_ro("unit", &Participant::unit)
      .def_ro("layout", &Participant::layout)
      .def_ro("first", &Participant::first)
      .def_ro("size", &Participant::size)
      .def_ro("is_source", &Participant::is_source);
  nb::class_<Action>(m, "FleetAction", "What the server of a fleet tells a member.")
      .def_prop_ro("kind", [](const Action& x) { return name(x.kind); })
      .def_ro("version", &Action::version)
      .def_ro("round", &Action::round)
      .def_ro("epoch", &Action::epoch)
      .def_ro("rank", &Action::rank)
      .def_ro("participants", &Action::participants)
      .def_prop_ro("code", [](const Action& x) { return reshard::name(x.code); })
      .def_ro("holders", &Action::holders)
      .def_ro("text", &Action::text);
}

}  // namespace

void bind_fleet(nb::module_& m) {
  bind_messages(m);
  nb::class_<FleetServer>(m, "FleetServer", "Serves a fleet from a thread.")
      .def(nb::new_(&serve), nb::arg("url"), nb::kw_only(), nb::arg("job"),
           nb::arg("secret") = nb::none(), nb::arg("secret_file") = nb::none(),
           nb::arg("gather") = 60.0, nb::arg("round") = 180.0, nb::arg("report") = 3.0)
      .def_prop_ro("url", [](const FleetServer& x) { return x.url(); })
      .def("text", &FleetServer::text, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<FleetMember>(m, "FleetMember", "A process's end of a fleet.")
      .def(nb::new_(&join_fleet), nb::arg("url"), nb::kw_only(), nb::arg("job"),
           nb::arg("secret") = nb::none(), nb::arg("secret_file") = nb::none(), nb::arg("unit"),
           nb::arg("trains"), nb::arg("rank"), nb::arg("size"), nb::arg("layout"),
           nb::arg("version"), nb::arg("timeout"))
      .def(
          "ready", [](FleetMember& x) { unwrap(x.ready()); },
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "publish",
          [](FleetMember& x, std::int64_t version, int engines) {
            unwrap(x.publish(version, engines));
          },
          nb::arg("version"), nb::arg("engines"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "report",
          [](FleetMember& x, std::int64_t round, bool has, std::int64_t keeps,
             const std::string& error) { unwrap(x.report(round, has, keeps, error)); },
          nb::arg("round"), nb::arg("has"), nb::arg("keeps"), nb::arg("error"),
          nb::call_guard<nb::gil_scoped_release>())
      .def("next", &next, nb::arg("timeout").none())
      .def("make_group", &make_group, nb::arg("order"), nb::kw_only(), nb::arg("transport"),
           nb::arg("timeout"), nb::arg("interface") = "", nb::arg("gpu") = nb::none())
      .def("cancel", &FleetMember::cancel);
  m.def(
      "move_layout", &moved, nb::arg("layout"), nb::arg("first"),
      "The same layout with its lowest rank at `first`. Raises InvalidArgumentError for a negative "
      "rank.");
}

}  // namespace reshard::python
