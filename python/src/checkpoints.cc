// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "python/src/values.h"
#include "reshard/base/number_text.h"

namespace reshard::python {
namespace {

/// Positive, or InvalidArgumentError.
Index positive(Index value, const char* what) {
  if (value < 1)
    raise(Code::invalid_argument, fmt::format("{} is {}; it must be 1 or more", what, value));
  return value;
}

ConvertReport convert(const PathArgument& input, const PathArgument& output, const std::string& to,
                      const std::string& from, const Names& ignore, Index buffer_bytes,
                      Index max_shard_bytes, bool sync, Index threads,
                      const ProgressArgument& progress, std::optional<std::string> prefix,
                      PathsArgument merge) {
  ConvertOptions options{.input = input.path.string(),
                         .output = output.path.string(),
                         .to = to,
                         .from = from,
                         .ignore = ignore.names,
                         .prefix = std::move(prefix),
                         .merge = std::move(merge.paths),
                         .buffer_bytes = positive(buffer_bytes, "buffer_bytes"),
                         .max_shard_bytes = positive(max_shard_bytes, "max_shard_bytes"),
                         .sync = sync,
                         .threads = threads_of(threads)};
  return with_progress(progress.value, [&](Progress report) {
    options.progress = std::move(report);
    return unwrap(convert_checkpoint(options));
  });
}

VerifyReport verify(const PathArgument& a, const PathArgument& b, const Names& ignore,
                    Index threads, const ProgressArgument& progress,
                    std::optional<std::string> prefix, PathsArgument merge) {
  VerifyOptions options{a.path.string(),   b.path.string(),        ignore.names,
                        std::move(prefix), std::move(merge.paths), threads_of(threads)};
  return with_progress(progress.value, [&](Progress report) {
    options.progress = std::move(report);
    return unwrap(verify_checkpoints(options));
  });
}

std::shared_ptr<SynthesizeReport> synthesize(const PathArgument& config, const PathArgument& output,
                                             std::optional<Index> layers, std::uint64_t seed,
                                             Index max_shard_bytes, Index threads,
                                             const ProgressArgument& progress) {
  SynthesizeOptions options{.config = config.path.string(),
                            .output = output.path.string(),
                            .layers = layers,
                            .seed = seed,
                            .max_shard_bytes = positive(max_shard_bytes, "max_shard_bytes"),
                            .threads = threads_of(threads)};
  return with_progress(progress.value, [&](Progress report) {
    options.progress = std::move(report);
    return std::make_shared<SynthesizeReport>(unwrap(synthesize_checkpoint(options)));
  });
}

constexpr const char* kProgress = R"(
progress         a callable (phase, bytes done, bytes in all), which cancels by raising or by
                 returning False; True: a bar of tqdm; None: a bar on a terminal or in a notebook,
                 if tqdm is installed; False: nothing
)";

void bind_model_files(nb::module_& m) {
  nb::class_<FileLeftOut>(m, "FileLeftOut",
                          "A file or folder beside a checkpoint's weights that was not copied.")
      .def_ro("name", &FileLeftOut::name,
              "In the checkpoint's folder; of a folder it ends in a slash.")
      .def_ro("why", &FileLeftOut::why, "The reason.")
      .def("__repr__", [](const FileLeftOut& x) {
        return fmt::format("<FileLeftOut '{}': {}>", x.name, x.why);
      });
  m.def(
      "copy_model_files",
      [](const PathArgument& from, const PathArgument& to, bool as_stored) {
        return unwrap(copy_model_files(from.path.string(), to.path.string(), as_stored));
      },
      nb::arg("from_"), nb::arg("to"), nb::arg("as_stored"));
}

void bind_convert(nb::module_& m) {
  nb::class_<ConvertReport>(m, "ConvertReport", "What convert() did.")
      .def_ro("bytes", &ConvertReport::bytes, "Tensor bytes of the output.")
      .def_ro("files", &ConvertReport::files, "Safetensors files of the output.")
      .def_ro("ranks", &ConvertReport::ranks, "Of the output's layout; 0 for hf.")
      .def_ro("kept_files", &ConvertReport::kept_files,
              "Files that an earlier, interrupted run had finished.")
      .def_ro("kept_bytes", &ConvertReport::kept_bytes, "Their tensor bytes.")
      .def_ro("ignored", &ConvertReport::ignored,
              "Tensors of the input that are none of the model's.")
      .def_ro("omitted", &ConvertReport::omitted, "Tensors that the output's layout does not hold.")
      .def_ro("files_left_out", &ConvertReport::files_left_out,
              "Files of the input that were not copied, as FileLeftOut.")
      .def_ro("layout", &ConvertReport::layout, "The notation of the output's layout.")
      .def_ro("notes", &ConvertReport::notes,
              "What a plan says too: what was not understood, what the layouts chose, and which "
              "tensors change their form or lose precision.")
      .def_ro("requantised", &ConvertReport::requantised,
              "Says which tensors lost precision, and why; empty if none did.")
      .def_ro("write_seconds", &ConvertReport::write_seconds,
              "Of reading, converting and writing what was not kept.")
      .def_ro("seconds", &ConvertReport::seconds, "Of the whole call.")
      .def("__repr__", [](const ConvertReport& x) {
        return fmt::format("<ConvertReport: {} in {}, layout {}, in {}>", human_bytes(x.bytes),
                           plural(x.files, "file"), x.layout, human_seconds(x.seconds));
      });
  const std::string doc = fmt::format(
      R"(Writes a checkpoint in another layout.

input            a checkpoint's folder, its index or its only file
output           the folder to write; must not exist
to               the output's layout, such as "vllm:tp=4", "hf" or "megatron:tp=2,quant=mxfp8"
from_            the input's layout; by default what the checkpoint says. Another one is an error
ignore           patterns ("*" any characters, "#" digits) of tensors that the output's layout may
                 lack, or that the input may have beside those of its config
buffer_bytes     most memory for output in flight
max_shard_bytes  most tensor bytes in a file of layout hf
sync             True: return only when all data is on the disk
threads          0: one per core that this process may use{}prefix           as of open_model(), for the input
merge            as of open_model(), for the input
Streams tensor by tensor, so memory stays bounded, and quantises or dequantises on the way where the
layouts ask for it. The output appears under its name complete or not at all: an error, an exception
of `progress` or Ctrl-C leaves finished files in "OUTPUT.partial", and the same call resumes there.

Raises InvalidArgumentError if the output exists or the layout cannot hold the model, CorruptError for
broken input, IoError for the disk, AbortedError if `progress` returned False.)",
      kProgress);
  m.def("convert", &convert, nb::arg("input"), nb::arg("output"), nb::arg("to"), nb::kw_only(),
        nb::arg("from_") = "", nb::arg("ignore") = nb::tuple(),
        nb::arg("buffer_bytes") = ConvertOptions{}.buffer_bytes,
        nb::arg("max_shard_bytes") = ConvertOptions{}.max_shard_bytes, nb::arg("sync") = false,
        nb::arg("threads") = 0, nb::arg("progress").none() = nb::none(),
        nb::arg("prefix").none() = nb::none(), nb::arg("merge") = nb::tuple(), doc.c_str());
}

void bind_verify(nb::module_& m) {
  nb::class_<VerifiedCheckpoint>(m, "VerifiedCheckpoint", "One side of a comparison.")
      .def_ro("path", &VerifiedCheckpoint::path, "As given.")
      .def_ro("layout", &VerifiedCheckpoint::layout, "The checkpoint's own.")
      .def_ro("tensors", &VerifiedCheckpoint::tensors,
              "As stored: data and scales of quantised tensors count separately.")
      .def_ro("bytes", &VerifiedCheckpoint::bytes, "Bytes that were read.")
      .def_ro("seconds", &VerifiedCheckpoint::seconds, "Of reading and fingerprinting.");
  nb::class_<TensorDifference>(m, "TensorDifference", "A tensor of both checkpoints that differs.")
      .def_ro("name", &TensorDifference::name, "Of the canonical tensor.")
      .def_ro("a", &TensorDifference::a,
              "Dtype, shape and fingerprint in A, or how its replicas disagree.")
      .def_ro("b", &TensorDifference::b, "The same in B.")
      .def("__repr__", [](const TensorDifference& x) {
        return fmt::format("<TensorDifference '{}': {} and {}>", x.name, x.a, x.b);
      });
  nb::class_<VerifyReport>(m, "VerifyReport", "What verify() found. True in a condition if equal.")
      .def_ro("a", &VerifyReport::a, "The first checkpoint.")
      .def_ro("b", &VerifyReport::b, "The second checkpoint.")
      .def_ro("same", &VerifyReport::same, "The number of tensors that agree in every bit.")
      .def_ro("differing", &VerifyReport::differing, "As TensorDifference.")
      .def_ro("only_a", &VerifyReport::only_a, "Names of tensors that only A has.")
      .def_ro("only_b", &VerifyReport::only_b, "Names of tensors that only B has.")
      .def_ro("other_shapes", &VerifyReport::other_shapes,
              "Tensors stored in another shape than their layout's or config's, a line each.")
      .def_ro("converted", &VerifyReport::converted,
              "The number of tensors of A compared in the form in which B stores them.")
      .def_ro("ignored", &VerifyReport::ignored,
              "Names not compared: asked for, or none of the model's.")
      .def_ro("left_out", &VerifyReport::left_out,
              "The number of scales of inputs, and of orders of columns, that one side's layout "
              "does not keep.")
      .def_prop_ro("equal", &VerifyReport::equal,
                   "True if nothing differs and neither side lacks a tensor.")
      .def("__bool__", &VerifyReport::equal)
      .def("__repr__", [](const VerifyReport& x) {
        return fmt::format("<VerifyReport: {}, {} same, {} differ, {} only in a, {} only in b>",
                           x.equal() ? "equal" : "different", x.same, x.differing.size(),
                           x.only_a.size(), x.only_b.size());
      });
  const std::string doc = fmt::format(
      R"(Compares two checkpoints, in any layouts, by fingerprints of their canonical tensors.

a, b             checkpoints: folders or files
ignore           patterns ("*" any characters, "#" digits) of tensors not to compare
threads          0: one per core that this process may use{}prefix           as of open_model(), for each that is of torch.distributed.checkpoint
merge            as of open_model(), for a
What A stores in another dtype is compared as a refit from A to B would leave it. A difference is not
an error: see the report. Raises NotFoundError, CorruptError or IoError for what cannot be read.)",
      kProgress);
  m.def("verify", &verify, nb::arg("a"), nb::arg("b"), nb::kw_only(),
        nb::arg("ignore") = nb::tuple(), nb::arg("threads") = 0,
        nb::arg("progress").none() = nb::none(), nb::arg("prefix").none() = nb::none(),
        nb::arg("merge") = nb::tuple(), doc.c_str());
}

void bind_synthesize(nb::module_& m) {
  nb::class_<SynthesizeReport>(m, "SynthesizeReport", "What synthesize() wrote.")
      .def_prop_ro(
          "model", [](const SynthesizeReport& x) -> const Model& { return x.model; },
          nb::rv_policy::reference_internal, "The checkpoint, opened.")
      .def_ro("bytes", &SynthesizeReport::bytes, "Tensor bytes of the output.")
      .def_ro("files", &SynthesizeReport::files, "Safetensors files of the output.")
      .def_ro("kept_bytes", &SynthesizeReport::kept_bytes,
              "Tensor bytes of files that an earlier, interrupted run had finished.")
      .def_ro("seconds", &SynthesizeReport::seconds, "Of the whole call.")
      .def("__repr__", [](const SynthesizeReport& x) {
        return fmt::format("<SynthesizeReport: {} in {}, in {}>", human_bytes(x.bytes),
                           plural(x.files, "file"), human_seconds(x.seconds));
      });
  const std::string doc = fmt::format(
      R"(Writes a Hugging Face checkpoint of a config's structure, with made-up values.

config           a config.json or a name of example_names()
output           the folder to write; must not exist
layers           instead of the config's number
seed             of the values, which are finite and depend on seed, name and position alone
max_shard_bytes  most tensor bytes in a file
threads          0: one per core that this process may use{}
Appears and resumes as the output of convert() does, and raises the same errors.)",
      kProgress);
  m.def("synthesize", &synthesize, nb::arg("config"), nb::arg("output"), nb::kw_only(),
        nb::arg("layers") = nb::none(), nb::arg("seed") = 0,
        nb::arg("max_shard_bytes") = SynthesizeOptions{}.max_shard_bytes, nb::arg("threads") = 0,
        nb::arg("progress").none() = nb::none(), doc.c_str());
}

}  // namespace

void bind_checkpoints(nb::module_& m) {
  bind_model_files(m);
  bind_convert(m);
  bind_verify(m);
  bind_synthesize(m);
}

}  // namespace reshard::python
