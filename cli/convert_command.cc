// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "cli/checkpoint_output.h"
#include "cli/checkpoint_source.h"
#include "cli/commands.h"
#include "cli/companion_files.h"
#include "cli/conversion_rows.h"
#include "cli/input_files.h"
#include "cli/interrupt.h"
#include "cli/measure.h"
#include "cli/plan_pair.h"
#include "cli/progress_bar.h"
#include "cli/quantised_slots.h"
#include "cli/test_stop.h"
#include "cli/text.h"
#include "cli/value_source.h"
#include "reshard/base/hash.h"
#include "reshard/exec/stream.h"
#include "reshard/io/checkpoint/rank_index.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/io/files/json.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/hf/quantization.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/families.h"
#include "reshard/plan/conversions.h"
#include "reshard/plan/planner.h"

namespace reshard::cli {
namespace {

namespace fs = std::filesystem;

/// A checkpoint is a folder of its own: where a live group starts has no meaning in it.
Result<LayoutSpec> layout_on_disk(const std::string& text, const char* option) {
  auto spec = RESHARD_TRY(read_layout_text(text));
  if (!spec.keys.contains("offset")) return spec;
  return fail(Code::invalid_argument,
              fmt::format("{} '{}': offset is for live ranks; a checkpoint's begin at 0, leave "
                          "it out",
                          option, text));
}

/// The input's layout. An explicit one must say the same as the checkpoint itself.
Result<LayoutSide> input_layout(const Model& model, const std::string& from) {
  auto own = RESHARD_TRY(own_side(model));
  if (from.empty()) return own;
  const auto spec = RESHARD_TRY(layout_on_disk(from, "--from"));
  const bool is_hf = model.weights->kind() == Checkpoint::Kind::hf;
  bool same = is_hf ? spec.family == "hf" : from == model.weights->layout();
  if (!same && !is_hf && spec.family != "hf") {
    for (const BlockGrid grid : {BlockGrid::local, BlockGrid::tensor}) {
      const auto asked = make_side(from, model, "", grid);
      if (!asked && grid == BlockGrid::local) return asked;
      same |= asked && asked->stored()->digest() == own.stored()->digest();
    }
  }
  if (same) return own;
  return fail(Code::invalid_argument,
              fmt::format("--from '{}': {} is in layout '{}'; give that or leave --from out", from,
                          model.name, is_hf ? "hf" : model.weights->layout()));
}

/// What makes two runs the same job: the files read, by identity, size and times, and everything
/// that decides what is written.
std::string job_key(const InputFiles& inputs, const ModelLayout& source, const ModelLayout& target,
                    const OutputFiles& out) {
  Digest d;
  d.add("convert 2").add(source.digest()).add(target.digest());
  inputs.add_to(d);
  for (const OutputFile& file : out.files)
    d.add(file.name).add(file.file_bytes).add(file.rank.value());
  return hex(d.value());
}

/// Most bytes of dequantised tensors that are kept for the next pieces.
constexpr Index kDequantisedBytes = Index{512} << 20;

/// Errors that are better found before anything is written: a checkpoint that no config can
/// describe.
Result<> check_output(const Model& model, const LayoutSpec& to, const LayoutSide& side) {
  if (!side.quantised || to.family != "hf") return {};
  if (to.keys.contains("quant_grid") && side.quantised->choice.grid == BlockGrid::local)
    return fail(Code::invalid_argument,
                fmt::format("--to '{}': the scales of a checkpoint are those of whole tensors; "
                            "leave quant_grid out",
                            to_string(to)));
  if (!side.method && !model.config_path.empty())
    return fail(Code::unsupported,
                fmt::format("--to '{}': no quant_method of a checkpoint has a word for {}; known "
                            "are {}",
                            to_string(to), to_string(side.quantised->choice.format),
                            known_quant_methods()));
  const QuantChoice& choice = side.quantised->choice;
  if (side.method != QuantMethod::modelopt || model.stored_method == QuantMethod::modelopt ||
      choice.format.block_rows > 0 || has_input_scales(*side.stored(), choice.tensors))
    return {};
  return fail(Code::unsupported,
              fmt::format("--to '{}': ModelOpt's FP8 has an input_scale for every module, without "
                          "which engines compute nonsense, and {} has none; quant_method=fp8 and "
                          "compressed-tensors scale inputs when they come",
                          to_string(to), model.name));
}

/// Tensors to ignore that the target may lack. What the source lacks, the target would have as
/// zeros.
std::set<std::string> to_leave_out(const ModelLayout& source,
                                   const std::set<std::string>& patterns) {
  std::set<std::string> names = matching_names(source.model(), patterns);
  std::erase_if(names, [&](const std::string& name) {
    return source.parts_of(*source.model().find(name)).empty();
  });
  return names;
}

/// Everything of a conversion but its outcome.
struct Job {
  const Model& model;
  const Planner& planner;
  const LayoutSide& target;
  bool as_stored;         ///< the plan is one of what is stored, else of values
  const Planner* stored;  ///< what else moves as it is stored; null: nothing
  const CheckpointSource& source;
  ValueSource& values;
  const ConvertArguments& arguments;
  ProgressBar& bar;
};

Result<> write_file(const Job& job, Index whole, const OutputFile& file, SafetensorsWriter& writer,
                    Index bytes_before) {
  const StreamDone done = [&](Rank r, SlotId slot, Index offset, Index bytes) {
    job.as_stored ? job.source.drop(r, slot, offset, bytes)
                  : job.values.drop(r, slot, offset, bytes);
    stop_for_test("piece");
  };
  StreamOptions options{job.arguments.buffer_bytes, num_threads(job.arguments.threads),
                        job.bar.from(bytes_before, whole)};
  if (!job.as_stored && job.target.quantised)
    return write_quantised(
        job.planner, job.values.reader(), done,
        {job.stored, &job.source.buffers(),
         [&](Rank r, SlotId slot, Index at, Index n) { job.source.drop(r, slot, at, n); }},
        *job.target.quantised, file, writer, options);
  std::vector<std::size_t> tensor_of_slot(
      static_cast<std::size_t>(job.planner.target().num_slots()));
  for (std::size_t i = 0; i < file.slots.size(); ++i) tensor_of_slot[file.slots[i].index()] = i;
  const StreamSink sink = [&](Rank, SlotId slot, Index offset, std::span<const std::byte> bytes) {
    return writer.write_at(tensor_of_slot[slot.index()], offset, bytes);
  };
  if (job.as_stored)
    return stream_rank(job.planner, job.source.buffers(), file.rank, file.slots, sink, done,
                       options);
  return stream_rank(job.planner, job.values.reader(), file.rank, file.slots, sink, done, options);
}

/// The config says how the weights beside it are stored; a checkpoint in ranks says so itself.
Result<> write_config(const Model& model, const LayoutSide& to, bool is_hf, bool as_stored,
                      OutputDir& folder) {
  const auto text = RESHARD_TRY(read_text_file(model.config_path, std::size_t{16} << 20));
  // Of the same data in the same form all that was said of them still holds.
  const bool same = is_hf && as_stored && model.stored_method && to.method == model.stored_method;
  if (same && stored_weights(text)) return folder.write_text(kConfigFile, text);
  return folder.write_text(
      kConfigFile,
      is_hf && to.quantised
          ? RESHARD_TRY(config_of_quantised_weights(
                text,
                {*to.method, to.quantised->choice.format,
                 has_input_scales(*to.stored(), to.quantised->choice.tensors)},
                plain_modules(*model.tensors, to.quantised->choice), model.config_path))
          : RESHARD_TRY(config_of_plain_weights(text, model.config_path)));
}

/// The tensors that a checkpoint in ranks lists: those of the model, but for scales of activations
/// that its layout leaves out.
ModelSpec recorded_tensors(const ModelLayout& layout) {
  ModelSpec tensors;
  for (Index t = 0; t < layout.model().size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    const CanonicalTensor& tensor = layout.model()[id];
    if (layout.omits(id) && is_activation_scale(tensor, layout.model())) continue;
    (void)tensors.add(tensor.name, tensor.shape, tensor.dtype, tensor.merged);  // was valid there
  }
  return tensors;
}

/// The files beside the weights: configs, tokenizer, and what describes the layout. Returns the
/// names of those that are left out.
Result<std::vector<std::string>> write_companions(const Model& model, const LayoutSpec& to,
                                                  const LayoutSide& side, bool as_stored,
                                                  const OutputFiles& files, OutputDir& folder) {
  std::vector<std::string> left_out;
  if (!model.config_path.empty()) {
    const std::string& from = model.weights->folder();
    const bool changes = (side.quantised || model.stored) && is_of_checkpoint(from, kConfigFile);
    left_out = RESHARD_TRY(copy_companion_files(from, folder, changes));
    if (changes) RESHARD_TRY(write_config(model, side, to.family == "hf", as_stored, folder));
  }
  if (to.family == "hf") {
    if (files.files.size() > 1) RESHARD_TRY(folder.write_text(kHfIndexFile, hf_index_of(files)));
    return left_out;
  }
  LayoutSpec recorded = model.config ? with_explicit_defaults(to, *model.config) : to;
  if (leaves_grid_open(to) && side.quantised->choice.grid == BlockGrid::tensor)
    recorded.keys["quant_grid"] = "tensor";
  if (takes_file(to.family)) {
    recorded.file = to.family + ".json";
    RESHARD_TRY(copy_file_into(to.file, recorded.file, folder));
  }
  if (const auto map = recorded.keys.find("expert_map"); map != recorded.keys.end()) {
    const std::string file = std::exchange(map->second, "expert_map.json");
    RESHARD_TRY(copy_file_into(file, map->second, folder));
  }
  RESHARD_TRY(folder.write_text(kRankIndexFile,
                                rank_index_text(RankIndex{to_string(recorded), files.of_rank},
                                                recorded_tensors(*side.stored()))));
  return left_out;
}

std::string report(const Job& job, const CheckpointOutput& output,
                   const std::vector<std::string>& left_out, double seconds) {
  const OutputFiles& files = output.files();
  const Index written = files.tensor_bytes() - output.kept_bytes();
  std::string text =
      fmt::format("{}: {} in {}", job.arguments.output, human_bytes(files.tensor_bytes()),
                  plural(static_cast<Index>(files.files.size()), "file"));
  if (!files.of_rank.empty())
    text += fmt::format(" for {}", plural(static_cast<Index>(files.of_rank.size()), "rank"));
  if (output.kept_files() > 0)
    text += fmt::format("; {} of an earlier run kept", plural(output.kept_files(), "file"));
  if (!job.model.left_out.empty()) text += "\n" + left_out_text(job.model);
  if (const auto omitted = omitted_by(job.planner); !omitted.empty())
    text += fmt::format("\nleft out {}, which {} does not hold, such as '{}'",
                        plural(static_cast<Index>(omitted.size()), "tensor"),
                        job.planner.target().name(), omitted.front());
  if (!left_out.empty())
    text +=
        fmt::format("\nleft out {}: links to files outside the checkpoint; copy what belongs to it",
                    fmt::join(left_out, ", "));
  return text + fmt::format("\nwrote {} in {}, {}; peak memory {}\n", human_bytes(written),
                            human_seconds(seconds), rate(written, seconds),
                            human_bytes(peak_rss_bytes()));
}

}  // namespace

Result<int> execute(const ConvertArguments& a) {
  const Stopwatch watch;
  const LayoutSpec to = RESHARD_TRY(layout_on_disk(a.to, "--to"));
  InputFiles inputs(a.input);
  inputs.add(to, "");
  const Model model = RESHARD_TRY(open_checkpoint(a.input, {.ignore = a.ignore}));
  RESHARD_TRY(check_ignored(model));
  inputs.add(*model.weights);
  if (const auto own = parse_layout(model.weights->layout()))
    inputs.add(*own, model.weights->folder());
  stop_for_test("start");
  const LayoutSide from_side = RESHARD_TRY(input_layout(model, a.from));
  const LayoutSide to_side = RESHARD_TRY(make_target(a.to, model, from_side));
  RESHARD_TRY(check_output(model, to, to_side));
  const bool as_stored = moves_as_stored(from_side, to_side);
  const auto& planned_from = as_stored ? from_side.stored() : from_side.values;
  const Planner planner =
      RESHARD_TRY(Planner::make(planned_from, as_stored ? to_side.stored() : to_side.values,
                                PlanOptions{.ignore = to_leave_out(*planned_from, model.ignore)}));
  const StoredPart part =
      as_stored ? StoredPart{} : RESHARD_TRY(stored_part(from_side, to_side, planner));
  const CheckpointSource source = RESHARD_TRY(CheckpointSource::bind(model, from_side));
  ValueSource values(from_side, source, kDequantisedBytes);
  const ModelLayout& stored = *to_side.stored();
  OutputFiles files = to.family == "hf"
                          ? RESHARD_TRY(hf_output_files(
                                to_side, to.keys.contains("shards") ? 0 : a.max_shard_bytes))
                          : RESHARD_TRY(rank_output_files(to_side));
  const std::string key = job_key(inputs, *from_side.stored(), stored, files);
  catch_interrupts();
  auto output = RESHARD_TRY(CheckpointOutput::create(a.output, key, std::move(files),
                                                     [&] { return inputs.unchanged(); }));
  ProgressBar bar;
  const Job job{model, planner, to_side, as_stored, part.planner.get(), source, values, a, bar};
  RESHARD_TRY(output.write([&](const OutputFile& file, SafetensorsWriter& writer, Index before) {
    return write_file(job, output.files().tensor_bytes(), file, writer, before);
  }));
  stop_for_test("files");
  auto companions =
      write_companions(model, to, to_side, as_stored, output.files(), output.folder());
  if (!companions) return tl::unexpected(output.with_what_is_kept(std::move(companions).error()));
  const auto left_out = *std::move(companions);
  RESHARD_TRY(output.commit(a.sync));
  print(report(job, output, left_out, watch.seconds()));
  if (const auto note = requantised_note(from_side, to_side, part.requantised); !note.empty())
    print(note + "\n");
  return 0;
}

}  // namespace reshard::cli
