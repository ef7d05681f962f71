// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/convert.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "reshard/base/hash.h"
#include "reshard/base/stopwatch.h"
#include "reshard/convert/checkpoint_source.h"
#include "reshard/convert/conversion_routes.h"
#include "reshard/convert/hooks.h"
#include "reshard/convert/layout_pair.h"
#include "reshard/convert/output/checkpoint_output.h"
#include "reshard/convert/output/companion_files.h"
#include "reshard/convert/output/input_files.h"
#include "reshard/convert/output/known_parts.h"
#include "reshard/convert/output/written_config.h"
#include "reshard/exec/stream.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/checkpoint/rank_index.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/io/layout_side.h"
#include "reshard/io/make_layout.h"
#include "reshard/io/traced/traced_layout.h"
#include "reshard/model/families.h"
#include "reshard/plan/conversions.h"
#include "reshard/plan/planner.h"

namespace reshard {
namespace {

/// A checkpoint's ranks begin at 0: an offset in a live group has no meaning in it.
Result<LayoutSpec> layout_on_disk(const std::string& text, const char* side) {
  auto spec = RESHARD_TRY(read_layout_text(text));
  if (!spec.keys.contains("offset")) return spec;
  return fail(Code::invalid_argument,
              fmt::format("{} '{}': offset is for live ranks; ranks of a checkpoint begin at 0, so "
                          "leave it out",
                          side, text));
}

/// Refuses an output that is the input, before anybody suggests to remove it.
Result<> check_apart(const std::string& input, const std::string& output) {
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::path above = fs::path(input).parent_path();
  const bool same = fs::equivalent(input, output, none) ||
                    (!fs::is_directory(input, none) && fs::equivalent(above, output, none));
  if (!same) return {};
  return fail(Code::invalid_argument,
              fmt::format("{}: is the input, which stays as it is; choose another output", output));
}

/// The input's layout. An explicit one must agree with the checkpoint's own.
Result<LayoutSide> input_layout(const Model& model, const std::string& from) {
  auto own = RESHARD_TRY(own_side(model));
  if (from.empty()) return own;
  const auto spec = RESHARD_TRY(layout_on_disk(from, "from"));
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
              fmt::format("from '{}': {} is in layout '{}'; give that layout or none", from,
                          model.name, is_hf ? "hf" : model.weights->layout()));
}

/// The resume key: two runs are the same job if they read the same files (inode, size, times) and
/// write the same output.
std::string job_key(const output::InputFiles& inputs, const ModelLayout& source,
                    const ModelLayout& target, const output::OutputFiles& out) {
  Digest d;
  d.add("convert 2").add(source.digest()).add(target.digest());
  inputs.add_to(d);
  for (const output::OutputFile& file : out.files)
    d.add(file.name).add(file.file_bytes).add(file.rank.value());
  return hex(d.value());
}

/// The files of the output.
Result<output::OutputFiles> output_files(const LayoutSpec& to, const LayoutSide& side,
                                         Index max_shard_bytes) {
  if (to.family == "hf")
    return output::hf_output_files(side, to.keys.contains("shards") ? 0 : max_shard_bytes);
  if (to.family == "torch_dist") return output::dcp_output_files(side, false);
  if (to.family != "dcp") return output::rank_output_files(side);
  const auto format = RESHARD_TRY(to.one_of("format", {"torch", "safetensors"}));
  return output::dcp_output_files(side, format == "safetensors");
}

/// Refuses, before anything is written, a checkpoint that no config can describe.
Result<> check_output(const Model& model, const LayoutSpec& to, const LayoutSide& side) {
  if (!side.quantised || to.family != "hf") return {};
  if (to.keys.contains("quant_grid") && side.quantised->choice.grid == BlockGrid::local)
    return fail(Code::invalid_argument,
                fmt::format("to '{}': the scales of a checkpoint are those of whole tensors; "
                            "leave quant_grid out",
                            to_string(to)));
  if (!side.method && !model.config_path.empty())
    return fail(
        Code::unsupported,
        fmt::format("to '{}': no quant_method of a checkpoint can express {}; known "
                    "are {}",
                    to_string(to), to_string(side.quantised->choice), known_quant_methods()));
  const QuantChoice& choice = side.quantised->choice;
  if (side.method != QuantMethod::modelopt || model.stored_method == QuantMethod::modelopt ||
      choice.format.block_rows > 0 || has_input_scales(*side.stored(), choice.tensors))
    return {};
  return fail(
      Code::unsupported,
      fmt::format("to '{}': ModelOpt's FP8 needs an input_scale for every module, or engines "
                  "compute wrong results, and {} has none; quant_method=fp8 and "
                  "compressed-tensors scale inputs at run time",
                  to_string(to), model.name));
}

/// Tensors that the target may lack, and parts of codes that are known without the source. Of other
/// tensors that the source lacks, the target would store zeros.
std::set<std::string> to_leave_out(const Model& model, const ModelLayout& source,
                                   const LayoutSide& target) {
  std::set<std::string> names = matching_names(source.model(), model.ignore);
  std::erase_if(names, [&](const std::string& name) {
    return source.parts_of(*source.model().find(name)).empty();
  });
  if (target.as_codes)
    for (const std::string& name : output::known_parts(*model.storage->codes))
      if (source.parts_of(*source.model().find(name)).empty()) names.insert(name);
  return names;
}

/// A conversion under way; borrows everything.
struct ConvertJob {
  const Model& model;
  const Planner& planner;
  const LayoutSide &from, &target;
  bool as_stored;         ///< the plan is between stored layouts, else between values.
  const Planner* stored;  ///< what else moves as it is stored; null: nothing does.
  const CheckpointSource& source;
  const ConvertOptions& options;
  const ConvertHook& hook;
};

/// A set of the target's slots.
class SlotSet {
 public:
  SlotSet(const ModelLayout& layout, std::span<const SlotId> slots)
      : has_(static_cast<std::size_t>(layout.num_slots())) {
    for (const SlotId slot : slots) has_[slot.index()] = true;
  }
  /// False for the slot -1, which stands for none.
  bool contains(SlotId slot) const { return slot.value() >= 0 && has_[slot.index()]; }

 private:
  std::vector<bool> has_;
};

/// The slots of a file that move as the source stores them.
std::vector<SlotId> slots_as_stored(const ConvertJob& job, const output::OutputFile& file) {
  if (job.as_stored) return file.slots;
  if (job.stored == nullptr || !job.target.quantised) return {};
  const SlotSet of_file(*job.target.stored(), file.slots);
  std::vector<SlotId> slots;
  for (const QuantisedLayout::Pair& pair : job.target.quantised->pairs) {
    const auto& parts = job.target.stored()->slot(pair.data).sections[0].parts;
    if (parts.empty() || !job.stored->moves(parts[0].tensor)) continue;
    for (const SlotId slot : {pair.data, pair.scales, pair.factor})
      if (of_file.contains(slot)) slots.push_back(slot);
  }
  return slots;
}

/// Writes some slots of a file.
Result<> write_slots(const ConvertJob& job, const Planner& planner, bool as_stored,
                     const output::OutputFile& file, std::span<const SlotId> slots,
                     TensorFileWriter& writer, const Progress& progress) {
  StreamOptions options;
  options.buffer_bytes = job.options.buffer_bytes;
  options.threads = job.options.threads;
  options.progress = progress;
  options.ahead = [&](std::span<const std::byte> memory) { job.source.prefetch(memory); };
  options.done = [&](std::span<const std::byte> memory) { job.source.drop(memory); };
  if (!as_stored && job.from.quantised) options.from = &*job.from.quantised;
  if (!as_stored && job.target.quantised) options.into = &*job.target.quantised;
  std::vector<std::size_t> tensor_of(static_cast<std::size_t>(job.target.stored()->num_slots()));
  for (std::size_t i = 0; i < file.slots.size(); ++i) tensor_of[file.slots[i].index()] = i;
  const StreamSink sink = [&](Rank, SlotId slot, Index offset,
                              std::span<const std::byte> bytes) -> Result<> {
    RESHARD_TRY(writer.write_at(tensor_of[slot.index()], offset, bytes));
    if (job.hook) job.hook("piece");
    return {};
  };
  return stream_rank(planner, job.source.buffers(), file.rank, slots, sink, options);
}

/// Writes the parts of codes that the source lacks and that are known without it, and takes them
/// out of `slots`.
Result<> write_known_parts(const ConvertJob& job, const output::OutputFile& file,
                           std::vector<SlotId>& slots, TensorFileWriter& writer) {
  if (!job.target.as_codes) return {};
  const ModelLayout& layout = *job.target.stored();
  std::vector<SlotId> written;
  for (std::size_t i = 0; i < file.slots.size(); ++i) {
    const SlotId slot = file.slots[i];
    const auto& parts = layout.slot(slot).sections[0].parts;
    if (parts.empty() || job.planner.moves(parts[0].tensor)) continue;
    const auto bytes = output::known_part(*job.model.storage->codes, layout, file.rank, slot);
    if (bytes.empty()) continue;
    RESHARD_TRY(writer.write_at(i, 0, bytes));
    written.push_back(slot);
  }
  std::erase_if(slots, [known = SlotSet(layout, written)](SlotId s) { return known.contains(s); });
  return {};
}

Result<> write_file(const ConvertJob& job, const output::OutputFile& file, TensorFileWriter& writer,
                    const Progress& progress) {
  std::vector<SlotId> stored = slots_as_stored(job, file);
  RESHARD_TRY(write_known_parts(job, file, stored, writer));
  const SlotSet as_stored(*job.target.stored(), stored);
  std::vector<SlotId> others;
  Index before = 0;  ///< bytes that the first stream writes.
  for (const SlotId slot : file.slots)
    if (!job.as_stored && !as_stored.contains(slot)) {
      others.push_back(slot);
      before += bytes_of_local(*job.target.stored(), file.rank, slot);
    }
  const Progress first = [&](std::string_view phase, Index done, Index) {
    return !progress || progress(phase, done, file.tensor_bytes);
  };
  const Progress second = [&](std::string_view phase, Index done, Index) {
    return !progress || progress(phase, before + done, file.tensor_bytes);
  };
  if (!others.empty())
    RESHARD_TRY(write_slots(job, job.planner, false, file, others, writer, first));
  if (stored.empty()) return {};
  return write_slots(job, job.as_stored ? job.planner : *job.stored, true, file, stored, writer,
                     second);
}

/// The tensors that reshard.json lists: those of the model without activation scales that the
/// layout omits.
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

/// The names of the files in the input's folder that are not a model's own: its weights, and the
/// files that its layout names.
std::set<std::string> input_files(const Model& model) {
  std::set<std::string> names = output::weight_files(*model.weights);
  const auto layout = parse_layout(model.weights->layout());
  if (!layout) return names;
  names.insert(layout->file);
  if (const auto map = layout->keys.find("expert_map"); map != layout->keys.end())
    names.insert(map->second);
  return names;
}

/// True if files of the input that describe the form of its weights describe the output's too.
bool keeps_descriptions(const Model& model, const LayoutSpec& to, const LayoutSide& side,
                        bool as_stored) {
  if (!model.opaque.empty() || side.as_codes) return true;
  if (!model.storage->decoded.empty()) return false;
  const bool same_form =
      !model.config || (model.stored_method && side.method == model.stored_method);
  return model.left_over.empty() && to.family == "hf" && as_stored && same_form;
}

/// Writes the files beside the weights: configs, tokenizer, and the description of the layout.
/// Returns what was not copied.
Result<std::vector<FileLeftOut>> write_companions(const Model& model, const LayoutSpec& to,
                                                  const LayoutSide& side, bool as_stored,
                                                  const output::WrittenConfig& config,
                                                  const output::OutputFiles& files,
                                                  OutputDir& folder) {
  std::vector<FileLeftOut> left_out;
  if (!model.config_path.empty()) {
    const std::string& from = model.weights->folder();
    const bool changes = config.text && output::is_of_checkpoint(from, kConfigFile);
    output::CompanionChoice choice{.done = input_files(model),
                                   .as_stored = keeps_descriptions(model, to, side, as_stored)};
    if (changes) choice.done.emplace(kConfigFile);
    left_out = RESHARD_TRY(output::copy_companion_files(from, folder.partial(), choice));
    if (changes) RESHARD_TRY(folder.write_text(kConfigFile, *config.text));
  }
  if (to.family == "hf") {
    if (files.files.size() > 1)
      RESHARD_TRY(folder.write_text(kHfIndexFile, output::hf_index_of(files)));
    return left_out;
  }
  if (to.family == "dcp" || to.family == "torch_dist") {
    if (files.dcp) RESHARD_TRY(output::write_dcp_metadata(side, files, folder));
    return left_out;
  }
  LayoutSpec recorded = model.config ? with_explicit_defaults(to, *model.config) : to;
  if (side.quantised && leaves_grid_open(to) && side.quantised->choice.grid == BlockGrid::tensor)
    recorded.keys["quant_grid"] = "tensor";
  if (const auto quant = recorded.keys.find("quant");
      quant != recorded.keys.end() && quant->second == "stored")
    quant->second = side.as_codes ? model.storage->codes->form : to_string(side.quantised->choice);
  if (side.traced) {
    recorded = side.traced->notation;
    RESHARD_TRY(folder.write_text(recorded.file, side.traced->text));
  } else if (takes_file(to.family)) {
    recorded.file = to.family + ".json";
    RESHARD_TRY(output::copy_file_into(to.file, recorded.file, folder.partial()));
  }
  if (const auto map = recorded.keys.find("expert_map"); map != recorded.keys.end()) {
    const std::string file = std::exchange(map->second, "expert_map.json");
    RESHARD_TRY(output::copy_file_into(file, map->second, folder.partial()));
  }
  RESHARD_TRY(folder.write_text(kRankIndexFile,
                                rank_index_text(RankIndex{to_string(recorded), files.of_rank},
                                                recorded_tensors(*side.stored()))));
  return left_out;
}

/// A second look at an input that another program may have changed without a new stamp: makes the
/// output again, from the files as they are now, and compares.
Result<> look_again(const ConvertJob& job, output::CheckpointOutput& out) {
  const CheckpointSource source = RESHARD_TRY(CheckpointSource::bind(job.model, job.from));
  const ConvertJob again{job.model,  job.planner, job.from,    job.target, job.as_stored,
                         job.stored, source,      job.options, {}};
  return out.look_again(
      job.options.progress,
      [&](const output::OutputFile& file, TensorFileWriter& writer, const Progress& progress) {
        return write_file(again, file, writer, progress);
      });
}

/// The notes of a plan, and those on the config that is written.
std::vector<std::string> all_notes(const ConvertJob& job, const output::WrittenConfig& config) {
  std::vector<std::string> notes = notes_of(job.model, job.from, job.target);
  notes.insert(notes.end(), config.notes.begin(), config.notes.end());
  for (std::string& note : quantisation_notes(job.from, job.target, job.planner))
    notes.push_back(std::move(note));
  for (const ConversionUse& use : conversions_of(job.planner)) notes.push_back(to_string(use));
  return notes;
}

/// The report of a finished conversion.
ConvertReport report_of(const ConvertJob& job, const output::CheckpointOutput& out,
                        std::vector<FileLeftOut> files_left_out, double seconds) {
  const output::OutputFiles& files = out.files();
  ConvertReport report;
  report.bytes = files.tensor_bytes();
  report.files = static_cast<Index>(files.files.size());
  report.ranks = static_cast<Index>(files.of_rank.size());
  report.kept_files = out.kept_files();
  report.kept_bytes = out.kept_bytes();
  report.ignored = job.model.left_out;
  report.omitted = omitted_by(job.planner);
  report.files_left_out = std::move(files_left_out);
  report.layout = job.planner.target().name();
  report.seconds = seconds;
  return report;
}

}  // namespace

Result<ConvertReport> convert_checkpoint(const ConvertOptions& options) {
  return convert_checkpoint(options, {});
}

Result<ConvertReport> convert_checkpoint(const ConvertOptions& a, const ConvertHook& hook) {
  const Stopwatch watch;
  const LayoutSpec to = RESHARD_TRY(layout_on_disk(a.to, "to"));
  RESHARD_TRY(check_apart(a.input, a.output));
  output::InputFiles inputs(a.input);
  inputs.add(to, "");
  for (const std::string& folder : a.merge) inputs.add_adapter(folder);
  const Model model = RESHARD_TRY(
      open_checkpoint(a.input, {.ignore = a.ignore, .prefix = a.prefix, .merge = a.merge}));
  inputs.add(model);
  const bool open_at_start = inputs.are_open_for_writing();
  if (const auto own = parse_layout(model.weights->layout()))
    inputs.add(*own, model.weights->folder());
  if (hook) hook("start");
  LayoutSide from_side = RESHARD_TRY(input_layout(model, a.from));
  const LayoutSide to_side = RESHARD_TRY(make_target(a.to, model, from_side));
  RESHARD_TRY(check_ignored(model, nullptr, to_side.lacked));
  // Of files, the same input is codes or their values, as the output needs them.
  if (to_side.as_codes) from_side = RESHARD_TRY(own_side(model, true));
  RESHARD_TRY(check_forms(model, from_side, to_side));
  RESHARD_TRY(check_output(model, to, to_side));
  const bool as_stored = moves_as_stored(from_side, to_side);
  const auto& planned_from = as_stored ? from_side.stored() : from_side.values;
  const Planner planner = RESHARD_TRY(
      Planner::make(planned_from, as_stored ? to_side.stored() : to_side.values,
                    PlanOptions{.ignore = to_leave_out(model, *planned_from, to_side)}));
  const StoredPart part =
      as_stored ? StoredPart{} : RESHARD_TRY(stored_part(from_side, to_side, planner));
  const output::WrittenConfig config =
      RESHARD_TRY(output::written_config(model, to.family, to_side, as_stored));
  const CheckpointSource source = RESHARD_TRY(CheckpointSource::bind(model, from_side));
  const ModelLayout& stored = *to_side.stored();
  output::OutputFiles files = RESHARD_TRY(output_files(to, to_side, a.max_shard_bytes));
  const std::string key = job_key(inputs, *from_side.stored(), stored, files);
  auto out = RESHARD_TRY(output::CheckpointOutput::create(a.output, key, std::move(files), hook,
                                                          [&] { return inputs.unchanged(); }));
  const ConvertJob job{model,  planner, from_side, to_side, as_stored, part.planner.get(),
                       source, a,       hook};
  const Stopwatch writing;
  RESHARD_TRY(out.write(a.progress, [&](const output::OutputFile& file, TensorFileWriter& writer,
                                        const Progress& progress) {
    return write_file(job, file, writer, progress);
  }));
  const double write_seconds = writing.seconds();
  if (hook) hook("files");
  auto companions =
      write_companions(model, to, to_side, as_stored, config, out.files(), out.folder());
  if (!companions) return tl::unexpected(out.with_what_is_kept(std::move(companions).error()));
  if (open_at_start || inputs.are_open_for_writing()) RESHARD_TRY(look_again(job, out));
  RESHARD_TRY(out.commit(a.sync));
  auto report = report_of(job, out, *std::move(companions), watch.seconds());
  report.write_seconds = write_seconds;
  report.notes = all_notes(job, config);
  report.requantised = requantised_note(from_side, to_side, part.requantised);
  return report;
}

}  // namespace reshard
