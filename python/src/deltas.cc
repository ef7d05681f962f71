// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "python/src/values.h"
#include "reshard/base/number_text.h"

namespace reshard::python {
namespace {

DeltaReport make(const PathArgument& base, const PathArgument& next, const PathArgument& output,
                 const std::optional<PathArgument>& after, bool sync, Index threads,
                 const ProgressArgument& progress) {
  MakeDeltaOptions options{.base = base.path.string(),
                           .next = next.path.string(),
                           .output = output.path.string(),
                           .after = after ? after->path.string() : "",
                           .sync = sync,
                           .threads = threads_of(threads)};
  return with_progress(progress.value, [&](Progress report) {
    options.progress = std::move(report);
    return unwrap(make_delta(options));
  });
}

ApplyDeltasReport apply(const PathArgument& base, PathsArgument deltas, const PathArgument& output,
                        bool sync, Index threads, const ProgressArgument& progress) {
  ApplyDeltasOptions options{.base = base.path.string(),
                             .deltas = std::move(deltas.paths),
                             .output = output.path.string(),
                             .sync = sync,
                             .threads = threads_of(threads)};
  return with_progress(progress.value, [&](Progress report) {
    options.progress = std::move(report);
    return unwrap(apply_deltas(options));
  });
}

DeltaReport inspect(const PathArgument& path) {
  return without_gil([&] { return unwrap(inspect_delta(path.path.string())); });
}

void bind_reports(nb::module_& m) {
  nb::class_<DeltaChange>(m, "DeltaChange", "A tensor, header or file that a delta changes.")
      .def_ro("file", &DeltaChange::file,
              "Its file in the checkpoint's folder; empty if the checkpoint is one file.")
      .def_ro("name", &DeltaChange::name,
              "Of the tensor; empty for a header, or a file that is no safetensors.")
      .def_ro("state", &DeltaChange::state, "\"changed\", \"added\" or \"removed\".")
      .def_ro("bytes", &DeltaChange::bytes, "Of the tensor, header or file.")
      .def_ro("delta_bytes", &DeltaChange::delta_bytes, "Of its codes in the delta.")
      .def("__repr__", [](const DeltaChange& x) {
        return fmt::format("<DeltaChange '{}' '{}': {}, {} of {} bytes>", x.file, x.name, x.state,
                           x.delta_bytes, x.bytes);
      });
  nb::class_<DeltaReport>(m, "DeltaReport", "What a delta contains.")
      .def_ro("base", &DeltaReport::base, "The fingerprint of the checkpoint that it applies to.")
      .def_ro("result", &DeltaReport::result, "That of the checkpoint that it gives.")
      .def_ro("anchor", &DeltaReport::anchor, "That of the checkpoint where its chain begins.")
      .def_ro("step", &DeltaReport::step, "Its number in its chain, from 1.")
      .def_ro("unchanged", &DeltaReport::unchanged,
              "The number of tensors, headers and other files that stay as they are.")
      .def_ro("changes", &DeltaReport::changes, "All others, as DeltaChange.")
      .def_ro("result_bytes", &DeltaReport::result_bytes, "Of the checkpoint that it gives.")
      .def_ro("delta_bytes", &DeltaReport::delta_bytes, "Of the delta's file.")
      .def_prop_ro("share", &DeltaReport::share, "delta_bytes / result_bytes.")
      .def_ro("seconds", &DeltaReport::seconds, "Of the whole call.")
      .def("__repr__", [](const DeltaReport& x) {
        return fmt::format("<DeltaReport: step {}, {} for {}, {} changes>", x.step,
                           human_bytes(x.delta_bytes), human_bytes(x.result_bytes),
                           x.changes.size());
      });
  nb::class_<ApplyDeltasReport>(m, "ApplyDeltasReport", "What apply() wrote.")
      .def_ro("base", &ApplyDeltasReport::base, "The fingerprint of the checkpoint it began with.")
      .def_ro("result", &ApplyDeltasReport::result, "That of the checkpoint that it wrote.")
      .def_ro("first_step", &ApplyDeltasReport::first_step, "The step of the first delta.")
      .def_ro("step", &ApplyDeltasReport::step, "The step of the last one.")
      .def_ro("files", &ApplyDeltasReport::files, "Files of the result.")
      .def_ro("bytes", &ApplyDeltasReport::bytes, "Bytes of the result.")
      .def_ro("delta_bytes", &ApplyDeltasReport::delta_bytes, "Bytes of all deltas' files.")
      .def_ro("seconds", &ApplyDeltasReport::seconds, "Of the whole call.")
      .def("__repr__", [](const ApplyDeltasReport& x) {
        return fmt::format("<ApplyDeltasReport: {} in {}, to step {}, in {}>", human_bytes(x.bytes),
                           plural(x.files, "file"), x.step, human_seconds(x.seconds));
      });
}

}  // namespace

void bind_deltas(nb::module_& m) {
  bind_reports(m);
  m.def("make_delta", &make, nb::arg("base"), nb::arg("next"), nb::arg("output"), nb::kw_only(),
        nb::arg("after") = nb::none(), nb::arg("sync") = false, nb::arg("threads") = 0,
        nb::arg("progress").none() = nb::none(),
        R"(Writes the delta that makes the checkpoint `next` of `base`.

base, next  checkpoints: both folders, with all their files in any format, or both files
output      the file to write; must not exist
after       the delta that ends at `base`, whose chain this one continues; None: `base` is an anchor
sync        True: return only when all data is on the disk
threads     0: one per core that this process may use
progress    as of reshard.convert()

The same checkpoints give the same file, which appears complete or not at all. Raises
InvalidArgumentError if `after` ends at another checkpoint, naming the first tensor that differs,
CorruptError for broken input, IoError for the disk, AbortedError if `progress` returned False.)");
  m.def("apply_deltas", &apply, nb::arg("base"), nb::arg("deltas"), nb::arg("output"),
        nb::kw_only(), nb::arg("sync") = false, nb::arg("threads") = 0,
        nb::arg("progress").none() = nb::none(),
        R"(Writes the checkpoint that all deltas together make of `base`.

base      a checkpoint: a folder or a file
deltas    one path or several, each beginning where the last one ends
output    the checkpoint to write; must not exist
sync      True: return only when all data is on the disk
threads   0: one per core that this process may use
progress  as of reshard.convert()

One pass over the base, whatever the number of deltas. The output appears complete or not at all, and
only if every part of it has the fingerprint that the last delta says. Raises InvalidArgumentError if
`base` is not the checkpoint that the first delta changes, naming the tensor that differs, or if the
deltas are no chain; CorruptError for damaged deltas, IoError for the disk, AbortedError if `progress`
returned False.)");
  m.def("inspect_delta", &inspect, nb::arg("path"),
        "Reads what a delta's file says. Raises NotFoundError, CorruptError, UnsupportedError for "
        "another version of the format, or IoError.");
}

}  // namespace reshard::python
