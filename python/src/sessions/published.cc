// SPDX-License-Identifier: Apache-2.0
#include "python/src/sessions/published.h"

#include <fmt/format.h>

#include "python/src/collectable.h"

namespace reshard::python {

PublishedWord::PublishedWord(nb::handle buffer) {
  const TensorName what{.name = "PublishedVersion"};
  memory_.emplace(buffer, what);
  const TensorView& view = memory_->view();
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const char* wrong = !view.on_host() || view.data == nullptr          ? "is not memory of the host"
                      : !view.contiguous()                             ? "is not contiguous"
                      : view.bytes() < Index{sizeof(PublishedVersion)} ? "has fewer than 8 bytes"
                      : address % alignof(PublishedVersion) != 0
                          ? "does not begin at a multiple of 8"
                      : view.read_only ? "is read-only"
                                       : nullptr;
  if (wrong != nullptr)
    raise(Code::invalid_argument,
          fmt::format("PublishedVersion: the buffer {}; it takes 8 writable bytes, aligned to 8",
                      wrong));
  // It has no other state, and zeroed memory is one that is empty (version.h).
  version_ = reinterpret_cast<PublishedVersion*>(view.data);
  if (std::string trouble = version_->trouble(); !trouble.empty())
    raise(Code::invalid_argument, "PublishedVersion: " + trouble);
}

std::string text_of(const TargetVersion& version) {
  if (version.state == TargetState::empty) return "empty";
  if (version.state == TargetState::torn)
    return version.version < 0 ? "torn" : fmt::format("torn, was {}", version.version);
  return fmt::format("whole, version {}{}", version.version,
                     version.buffer == 0 ? "" : " in the second copy");
}

namespace {

void bind_target_version(nb::module_& m) {
  nb::class_<TargetVersion>(m, "TargetVersion", R"(What a target holds, as a reader sees it.

state    "empty": nothing has been committed; "whole": every byte of `version` is in place; "torn": a
         refit in place is in progress or failed, and parts are new, parts old
version  of a whole target; of a torn one, the last that was whole; -1 if none was
buffer   the copy to read: 0 the target's tensors, 1 `back_tensors`)")
      .def_prop_ro(
          "state", [](const TargetVersion& x) { return name(x.state); },
          nb::sig("def state(self) -> typing.Literal['empty', 'whole', 'torn']"),
          "\"empty\", \"whole\" or \"torn\".")
      .def_ro("version", &TargetVersion::version,
              "Of a whole target; of a torn one, the last that was whole; -1 if none was.")
      .def_ro("buffer", &TargetVersion::buffer,
              "The copy to read: 0 the target's tensors, 1 `back_tensors`.")
      .def_prop_ro(
          "whole", [](const TargetVersion& x) { return x.state == TargetState::whole; },
          "True if every byte of `version` is in place.")
      .def(
          "__eq__",
          [](const TargetVersion& a, const nb::handle& b) {
            return nb::isinstance<TargetVersion>(b) && a == nb::cast<const TargetVersion&>(b);
          },
          nb::arg().none())
      .def("__hash__",
           [](const TargetVersion& x) {
             return nb::hash(nb::make_tuple(static_cast<int>(x.state), x.version, x.buffer));
           })
      .def("__repr__",
           [](const TargetVersion& x) { return fmt::format("<TargetVersion: {}>", text_of(x)); });
}

void take_back(PublishedWord& x, const TargetVersion& earlier) {
  const TargetVersion now = x.version().target_version();
  if (earlier.version > now.version)
    raise(Code::invalid_argument,
          fmt::format("take_back: {} is not before {}", text_of(earlier), text_of(now)));
  x.version().set(earlier);
}

void tear(PublishedWord& x) {
  x.version().set({TargetState::torn, -1, x.version().target_version().buffer});
}

}  // namespace

void bind_published(nb::module_& m) {
  bind_target_version(m);
  nb::class_<PublishedWord>(m, "PublishedVersion", collectable<PublishedWord>(),
                            R"(Where a rank publishes the version of its target to readers.

    PublishedVersion()          in memory of its own
    PublishedVersion(buffer)    in the first 8 bytes of a buffer, such as SharedMemory.buf, for other
                                processes; zeros mean that nothing has been committed

Pass it to a Session, and to the next one after a failure: versions then go on. To detect a refit
during a read, compare target_version() before with target_version_after_reading() after it: if both
are equal and whole, the bytes read are of that version. Any thread or process may read it.)")
      .def(nb::init<>())
      .def(
          "__init__",
          [](PublishedWord* self, nb::handle buffer) { new (self) PublishedWord(buffer); },
          nb::arg("buffer"), nb::sig("def __init__(self, buffer: typing.Any) -> None"))
      .def(
          "target_version", [](const PublishedWord& x) { return x.version().target_version(); },
          "The TargetVersion now. Any thread, and any process that shares the memory.")
      .def(
          "target_version_after_reading",
          [](const PublishedWord& x) { return x.version().target_version_after_reading(); },
          "target_version(), ordered after all earlier reads of this thread.")
      .def(
          "take_back", &take_back, nb::arg("earlier"),
          "Publishes a TargetVersion that this had before, because other ranks did not get a newer "
          "one. With doubled buffers that is whole until the next refit begins; in place only one "
          "that is torn or empty is true. Raises InvalidArgumentError for a newer version.")
      .def("tear", &tear,
           "Publishes that nothing whole is held, so that any version may be taken again.")
      .def("__repr__", [](const PublishedWord& x) {
        return fmt::format("<PublishedVersion: {}>", text_of(x.version().target_version()));
      });
}

}  // namespace reshard::python
