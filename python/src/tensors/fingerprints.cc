// SPDX-License-Identifier: Apache-2.0
// Fingerprints of tensors in memory, and filling memory from a checkpoint.
#include <fmt/format.h>

#include "python/src/tensors/buffers.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/load_weights.h"
#include "reshard/exec/verify/fingerprints.h"

namespace reshard::python {
namespace {

/// The class reshard.ModelFingerprints, with the names of its tensors.
struct NamedFingerprints {
  std::shared_ptr<const ModelSpec> model;
  ModelFingerprints all;

  const ModelFingerprints::Tensor& at(const std::string& name) const {
    const auto id = model->find(name);
    if (!id) throw nb::key_error(name.c_str());
    return all.tensors[id->index()];
  }
  /// The same for an argument of a method.
  const ModelFingerprints::Tensor& named(const std::string& name) const {
    if (!model->find(name))
      raise(Code::not_found, fmt::format("name: the model has no tensor '{}'", name));
    return at(name);
  }
};

NamedFingerprints fingerprints_of(TensorBuffers& buffers, const std::shared_ptr<const Layout>& like,
                                  Index threads, const nb::object& progress) {
  const int workers = threads_of(threads);
  buffers.refresh("");
  const ModelLayout& layout = buffers.layout()->stored();
  std::vector<StoredForm> forms;
  if (like != nullptr) {
    if (like->stored().model().digest() != layout.model().digest())
      raise(Code::invalid_argument,
            fmt::format("{} and {} store different tensors", layout.name(), like->stored().name()));
    forms = forms_of(like->stored());
  }
  ModelFingerprints all = with_progress(progress, [&](const Progress& report) {
    return unwrap(fingerprints(buffers.memory(), workers, report, forms));
  });
  return {layout.shared_model(), std::move(all)};
}

void compare(const NamedFingerprints& source, const NamedFingerprints& target) {
  if (source.model->digest() != target.model->digest())
    raise(Code::invalid_argument, "the fingerprints are of different models");
  unwrap(compare_fingerprints(*source.model, source.all, target.all));
}

/// Rank by rank, through host memory of one rank.
bool load_to_gpu(const Model& model, TensorBuffers& buffers, std::optional<Rank> only, int threads,
                 const Progress& report) {
  for (const Rank rank : buffers.memory().ranks()) {
    if (only && rank != *only) continue;
    const RankBuffers host =
        unwrap(RankBuffers::allocate(buffers.memory().shared_layout(), std::array{rank}));
    unwrap(load_weights(model, host, rank, {.threads = threads, .progress = report}));
    buffers.copy_from(host, rank);
  }
  return true;
}

void load(const Model& model, TensorBuffers& buffers, std::optional<RankArgument> rank,
          Index threads, const nb::object& progress) {
  const int workers = threads_of(threads);
  if (!model.weights)
    raise(Code::invalid_argument,
          fmt::format("{} is no checkpoint: it has no weights", model.name));
  if (buffers.layout()->side.quantised != nullptr && !model.stored)
    raise(Code::unsupported,
          fmt::format("{} stores plain values, and {} quantised ones; load them in a plain layout "
                      "and refit",
                      model.name, buffers.layout()->stored().name()));
  buffers.refresh("");
  MemoryCheck check;
  expect_usable(check, {.target = &buffers.memory()});
  std::optional<Rank> only;
  if (rank) only = rank_in(*buffers.layout(), *rank);
  with_progress(progress, [&](const Progress& report) {
    if (buffers.device() != nullptr) return load_to_gpu(model, buffers, only, workers, report);
    unwrap(load_weights(model, buffers.memory(), only, {.threads = workers, .progress = report}));
    return true;
  });
}

constexpr const char* kSignature =
    "collections.abc.Callable[[str, int, int], object] | bool | None = False";

void bind_class(nb::module_& m) {
  nb::class_<NamedFingerprints>(
      m, "ModelFingerprints",
      R"(Fingerprints of a layout's tensors: {canonical name: 32 hexadecimal digits}.

A fingerprint does not depend on how a tensor is cut, so those of a source and a target compare
without moving data.)")
      .def(
          "__getitem__",
          [](const NamedFingerprints& x, const std::string& name) {
            return to_string(x.at(name).fingerprint);
          },
          nb::arg("name"))
      .def("__len__", [](const NamedFingerprints& x) { return x.all.tensors.size(); })
      .def(
          "dict",
          [](const NamedFingerprints& x) {
            nb::dict out;
            for (std::size_t t = 0; t < x.all.tensors.size(); ++t)
              out[nb::cast((*x.model)[TensorId(static_cast<TensorId::rep>(t))].name)] =
                  to_string(x.all.tensors[t].fingerprint);
            return out;
          },
          nb::sig("def dict(self) -> dict[str, str]"),
          "The same as a dict: {canonical name: 32 hexadecimal digits}.")
      .def(
          "replicas",
          [](const NamedFingerprints& x, const std::string& name) {
            return x.named(name).replicas;
          },
          nb::arg("name"), "The least number of ranks that hold any one element of a tensor.")
      .def(
          "disagreement",
          [](const NamedFingerprints& x, const std::string& name) {
            return x.named(name).disagreement;
          },
          nb::arg("name"),
          "Which ranks' replicas of a tensor differ, and where; empty if they agree.")
      .def_prop_ro(
          "bytes", [](const NamedFingerprints& x) { return x.all.bytes; }, "Bytes that were read.")
      .def_prop_ro(
          "seconds", [](const NamedFingerprints& x) { return x.all.seconds; },
          "Of reading and computing.")
      .def("__repr__", [](const NamedFingerprints& x) {
        return fmt::format("<ModelFingerprints: {}, {} read in {}>",
                           plural(static_cast<Index>(x.all.tensors.size()), "tensor"),
                           human_bytes(x.all.bytes), human_seconds(x.all.seconds));
      });
}

}  // namespace

void bind_fingerprints(nb::module_& m) {
  bind_class(m);
  m.def("fingerprints", &fingerprints_of, nb::arg("buffers"), nb::kw_only(),
        nb::arg("like").none() = nb::none(), nb::arg("threads") = 0, nb::arg("progress") = false,
        nb::sig(fmt::format("def fingerprints(buffers: RankBuffers, *, like: Layout | None = None, "
                            "threads: int = 0, progress: {}) -> ModelFingerprints",
                            kSignature)
                    .c_str()),
        R"(Fingerprints all tensors of a layout in the memory of its ranks, replicas included.

All ranks' tensors are in these buffers. `like` is another layout of the same model: values are
fingerprinted in the form in which it stores them, so that a source and a target of different dtypes
compare. Tensors of a GPU are read there, after the work of the buffers' stream. Raises
InvalidArgumentError if memory is missing (named).)");
  m.def(
      "compare_fingerprints", &compare, nb::arg("source"), nb::arg("target"),
      "Returns None if both agree. Raises CorruptError naming the first tensor whose fingerprints "
      "differ, or whose replicas disagree.");
  m.def(
      "load_weights", &load, nb::arg("model"), nb::arg("buffers"), nb::kw_only(),
      nb::arg("rank").none() = nb::none(), nb::arg("threads") = 0, nb::arg("progress") = false,
      nb::sig(fmt::format("def load_weights(model: Model, buffers: RankBuffers, *, rank: int | "
                          "None = None, threads: int = 0, progress: {}) -> None",
                          kSignature)
                  .c_str()),
      R"(Fills local tensors from a checkpoint, in any layout: only the bytes that they hold are read.
Those of a GPU are filled rank by rank, through memory of the host.

rank      fills the tensors of this rank alone
threads   that read; 0: one for each core
progress  a callable (phase, bytes done, bytes in all), True for a bar of tqdm, or False

Raises NotFoundError for a tensor that the checkpoint lacks, CorruptError for files that changed
meanwhile, UnsupportedError for a quantised layout of plain values.)");
}

}  // namespace reshard::python
