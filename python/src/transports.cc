// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "python/src/support.h"

namespace reshard::python {

void bind_transports(nb::module_& m) {
  nb::class_<TransportStatus>(m, "TransportStatus",
                              "A transport, in this build and on this machine.")
      .def_ro("name", &TransportStatus::name, "As the argument `transport` takes it.")
      .def_ro("built", &TransportStatus::built, "True if its code is in this build.")
      .def_ro("available", &TransportStatus::available,
              "True if it can make a group on this machine.")
      .def_ro("version", &TransportStatus::version,
              "Of its library, or of itself; empty if that cannot be loaded.")
      .def_ro("reason", &TransportStatus::reason, "Why it is not available; else empty.")
      .def_ro("gpu_reason", &TransportStatus::gpu_reason,
              "Why messages cannot be in the memory of a GPU here; else empty.")
      .def_ro("purpose", &TransportStatus::purpose, "Its use, in one line.")
      .def("__repr__", [](const TransportStatus& x) {
        return fmt::format(
            "<TransportStatus '{}': {}>", x.name,
            x.available ? "available, version " + x.version : "not available, " + x.reason);
      });
  nb::class_<Launched>(m, "Launched", "The position of this process among those of a launcher.")
      .def_ro("rank", &Launched::rank, "The number of this process, from 0.")
      .def_ro("size", &Launched::size, "The number of processes.")
      .def_ro("launcher", &Launched::launcher,
              "\"Open MPI\", \"MPICH\", \"Slurm\" or \"torchrun\".")
      .def("__repr__", [](const Launched& x) {
        return fmt::format("<Launched by {}: rank {} of {}>", x.launcher, x.rank, x.size);
      });
  m.def(
      "transports", &transports, nb::call_guard<nb::gil_scoped_release>(),
      "Every transport that reshard has or plans, as TransportStatus. Loads their libraries, which "
      "has no side effects.");
  m.def("transport_names", &transport_names, "The names of all transports. Loads nothing.");
  m.def(
      "find_transport", [](const std::string& name) { return find_transport(name); },
      nb::arg("name"), nb::call_guard<nb::gil_scoped_release>(),
      "The transport of this name, or None. Loads only its library.");
  m.def(
      "launched", [] { return unwrap(launched()); },
      "The position of this process among those that mpirun, srun or torchrun started, by its "
      "environment; None without a launcher. Raises InvalidArgumentError if a variable is missing "
      "or is no number.");
}

}  // namespace reshard::python
