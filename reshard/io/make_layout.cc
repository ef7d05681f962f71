// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/make_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "reshard/base/check.h"
#include "reshard/base/closest_name.h"
#include "reshard/io/card_file.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/io/dcp/piece_layout.h"
#include "reshard/io/dtensor_file.h"
#include "reshard/io/expert_map_file.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/hf/config_values.h"
#include "reshard/io/layout_file.h"
#include "reshard/io/layout_side.h"
#include "reshard/io/rules_file.h"
#include "reshard/io/torch_dist/torch_dist_layout.h"
#include "reshard/io/traced/traced_layout.h"
#include "reshard/model/families.h"
#include "reshard/model/quant/notation.h"

namespace reshard {
namespace {

std::string in_folder(const std::string& folder, const std::string& file) {
  return (std::filesystem::path(folder) / file).string();
}

/// Says why there is no config, which may name the families that do without.
tl::unexpected<Error> needs_config(const LayoutSpec& spec, const Model& model) {
  const std::string& why = model.no_config;
  const bool said = why.find("rules:FILE") != why.npos;
  const std::string traced = model.config_path.empty() ? "" : traced_instead_of(spec);
  return fail(
      Code::unsupported,
      fmt::format("the family '{}' needs a config, but {}{}{}", spec.family, why,
                  said ? "" : "; hf, fsdp, dtensor:FILE, rules:FILE and explicit:FILE need none",
                  traced.empty() ? "" : fmt::format("; {} asks the engine's own loader", traced)));
}

/// True if the layout is that of the model's own files, which hold what they hold.
bool is_own(const Model& model, const std::string& rules_folder) {
  return model.weights && model.weights->kind() != Checkpoint::Kind::hf && !rules_folder.empty() &&
         rules_folder == model.weights->folder();
}

/// The layout that rules say. Cards of engines for known classes read no config file, which may be
/// gone: the model has all of their numbers.
Result<ModelLayout> layout_by(const RuleSet& rules, const LayoutSpec& spec, FamilyInput input,
                              const Model& model, const std::string& rules_folder) {
  RESHARD_TRY(check_values_stay(spec, model, &rules));
  ConfigValues values;
  const bool has_numbers = model.config && (spec.family == "vllm" || spec.family == "sglang");
  if (!model.config_path.empty() && !has_numbers)
    values = RESHARD_TRY(hf::read_config_values(model.config_path));
  // open_model() may have taken fewer layers than the file says.
  if (model.config) values.numbers["num_hidden_layers"] = model.config->num_hidden_layers;
  input.values = &values;
  const std::set<std::string> all = {"*"};
  input.may_lack = is_own(model, rules_folder) ? &all : &model.ignore;
  ExpertTables tables;
  if (const auto map = spec.keys.find("expert_map"); map != spec.keys.end()) {
    tables = RESHARD_TRY(read_expert_map(in_folder(rules_folder, map->second)));
    input.expert_map = &tables;
  }
  return rules_layout(spec, input, rules);
}

/// `side`: receives `pieces` and `by_card`; its `traced` is read.
Result<ModelLayout> build(const LayoutSpec& spec, const FamilyInput& input, const Model& model,
                          const std::string& rules_folder, LayoutSide& side) {
  if (side.traced) {
    LayoutSpec nameless = spec;
    nameless.file.clear();
    return explicit_layout(nameless, input, side.traced->layout);
  }
  if (spec.family == "hf") return hf_layout(spec, input);
  if (spec.family == "dcp") return fsdp_layout(spec, input);
  if (spec.family == "fsdp") {
    const auto card = RESHARD_TRY(find_module_card(spec, model));
    side.by_card = card.has_value();
    return card ? layout_by(*card, spec, input, model, rules_folder) : fsdp_layout(spec, input);
  }
  const auto path = in_folder(rules_folder, spec.file);
  if (spec.family == "rules")
    return layout_by(RESHARD_TRY(read_rules(path)), spec, input, model, rules_folder);
  if (spec.family == "dtensor") return dtensor_layout(spec, input, RESHARD_TRY(read_dtensor(path)));
  if (spec.family == "explicit")
    return explicit_layout(spec, input, RESHARD_TRY(read_layout_file(path)));
  if (!model.config || spec.family == "vllm" || spec.family == "sglang") {
    const auto card = RESHARD_TRY(find_card(spec.family, model));
    if (!card) return needs_config(spec, model);
    side.by_card = !model.config;
    return layout_by(*card, spec, input, model, rules_folder);
  }
  if (spec.family == "megatron") return megatron_layout(spec, input);
  const auto made = RESHARD_TRY(torch_dist::torch_dist_layout(spec, input));
  side.pieces = made.content;
  return *made.layout;
}

}  // namespace

Result<ModelLayout> layout_by_rules_of(const LayoutSpec& spec, const Model& model,
                                       const RuleSet& rules,
                                       std::shared_ptr<const ModelSpec> tensors) {
  const FamilyInput input{tensors ? std::move(tensors) : model.tensors, model.config_or_null()};
  return layout_by(rules, spec, input, model, "");
}

Result<LayoutSpec> read_layout_text(const std::string& text) {
  RESHARD_TRY(check_is_one(text));
  auto spec = RESHARD_TRY(parse_layout(text));
  const auto& f = spec.family;
  const auto known = layout_families();
  if (std::ranges::find(known, f) == known.end())
    return fail(Code::invalid_argument,
                fmt::format("layout '{}': unknown family '{}'{}; known are {}", text, f,
                            did_you_mean(f, known), fmt::join(known, ", ")));
  if (takes_file(f) && spec.file.empty())
    return fail(Code::invalid_argument, fmt::format("layout '{0}' needs a file: {0}:cut.json", f));
  return spec;
}

Result<> check_values_stay(const LayoutSpec& spec, const Model& model, const RuleSet* rules) {
  constexpr std::array kWithoutConfig = {"hf", "fsdp", "dcp", "dtensor", "rules", "explicit"};
  const bool builds = model.config || rules != nullptr ||
                      std::ranges::find(kWithoutConfig, spec.family) !=
                          kWithoutConfig.end();  // else build() says why not
  if (model.opaque.empty() || !builds) return {};
  std::string option;
  for (const char* key : {"quant", "dtype"})
    if (const auto at = spec.keys.find(key); at != spec.keys.end())
      option = fmt::format("{}={}", key, at->second);
  if (rules != nullptr)
    for (const Rule& rule : rules->rules)
      if (rule.dtype) option = fmt::format("dtype of the rule {}", in_quotes(rule.match));
  if (option.empty() && ((rules != nullptr && rules->config_dtype) || spec.family == "vllm" ||
                         spec.family == "sglang"))
    option = "the dtype of its parameters";
  if (option.empty()) return {};
  return fail(Code::unsupported,
              fmt::format("{} would change values, but {}; hf, fsdp, dcp, dtensor:FILE and "
                          "rules:FILE without quant and dtype move every byte as it is",
                          option, model.opaque));
}

constexpr const char* kGridKey = "quant_grid";

bool leaves_grid_open(const LayoutSpec& spec) {
  return spec.keys.contains("quant") && !spec.keys.contains(kGridKey);
}

std::optional<DType> usual_dtype(const ModelLayout& values) {
  std::map<DType, Index> elements;
  for (Index i = 0; i < values.model().size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    if (values.parts_of(id).empty() || !is_convertible(values.form(id).dtype)) continue;
    elements[values.form(id).dtype] += volume(values.model()[id].shape);
  }
  std::optional<DType> usual;
  for (const auto& [dtype, count] : elements)
    if (!usual || count > elements[*usual]) usual = dtype;
  return usual;
}

bool stored_alike(const QuantFormat& from, const QuantFormat& to) {
  QuantFormat as = from;
  as.zero_block = to.zero_block;
  // Powers of two are valid scales everywhere; other scales only where powers are not required.
  if (to.rule == ScaleRule::exact || to.scale == DType::f8_e8m0) as.rule = to.rule;
  return as == to;
}

namespace {

/// Takes the notation out of `spec`, with `grid` if the text leaves the grid open. Its name
/// mentions the grid if that is not the family's default.
Result<std::optional<QuantNotation>> take_notation(LayoutSpec& spec,
                                                   std::optional<BlockGrid> grid) {
  LayoutSpec said = spec;
  auto notation = RESHARD_TRY(take_quant(spec));
  if (!notation || notation->grid || !grid || notation->effective_grid() == *grid) return notation;
  notation->otherwise = grid;
  said.keys[kGridKey] = *grid == BlockGrid::tensor ? "tensor" : "local";
  notation->name = to_string(said);
  return notation;
}

/// The name of a format of integers leaves the dtype of scales open: that of a checkpoint in this
/// format is what its scales have.
QuantFormat with_stored_scales(const QuantFormat& format, const Model& model) {
  if (!has_integers(format) || !model.stored) return format;
  QuantFormat as = format;
  as.scale = model.stored->format.scale;
  return as == model.stored->format ? as : format;
}

/// quant=stored of ranks, by the format's name: others read their files without the checkpoint.
/// Errors: a checkpoint that is not quantised, or that mixes formats.
Result<> name_stored(LayoutSpec& spec, const Model& model) {
  const auto quant = spec.keys.find("quant");
  if (quant == spec.keys.end() || quant->second != "stored") return {};
  if (model.storage->codes) {
    quant->second = model.storage->codes->form;
    return {};
  }
  if (!model.storage->decoded.empty())
    return fail(
        Code::unsupported,
        fmt::format("quant=stored: the checkpoint has weights as {}, which are read, but not "
                    "written; name a format, or none for plain weights",
                    model.storage->decoded_from));
  if (!model.stored)
    return fail(Code::invalid_argument,
                "quant=stored: the weights of the checkpoint are not quantised");
  if (spec.family == "hf") return {};
  const std::string format = to_string(*model.stored);
  if (!model.stored->others.empty() || !quant_format_from_name(format))
    return fail(Code::unsupported,
                fmt::format("quant=stored: the checkpoint has weights as {}, which files of ranks "
                            "have no name for; name one format, or none for plain weights",
                            format));
  quant->second = format;
  return {};
}

/// Input scales are valid only with the weights that they were calibrated with: in files of the
/// same method, or with per-tensor scales if every module has one.
bool keeps_input_scales(const QuantNotation& notation, const Model& model) {
  const auto& method = model.stored_method;
  if (notation.as_stored) return true;
  if (method && supports(*method, notation.format) && notation.method.value_or(*method) == *method)
    return true;
  const bool one_scale = is_one_block(notation.format);
  return one_scale && has_input_scales(*model.tensors, model.stored->tensors);
}

/// True if the layout holds codes as they are stored.
bool asks_for_codes(const LayoutSpec& spec) {
  const auto quant = spec.keys.find("quant");
  return quant != spec.keys.end() && is_code_form(quant->second);
}

/// Errors: a layout of codes that the model is not stored in, or that the family does not have.
Result<> check_codes_of(const LayoutSpec& spec, const Model& model) {
  constexpr std::array kFamilies = {"hf", "vllm", "fsdp", "rules"};
  const std::string& form = spec.keys.at("quant");
  if (std::ranges::find(kFamilies, spec.family) == kFamilies.end())
    return fail(Code::unsupported,
                fmt::format("quant={}: codes are moved as they are stored to hf, vllm, fsdp and "
                            "rules:FILE; without quant, {} gets the decoded values",
                            form, spec.family));
  for (const char* key : {"quant_method", kGridKey, "quant_skip"})
    if (spec.keys.contains(key))
      return fail(Code::invalid_argument,
                  fmt::format("quant={} moves codes as they are stored; leave {} out", form, key));
  if (spec.family != "vllm" && spec.keys.contains("dtype"))
    return fail(Code::invalid_argument,
                fmt::format("quant={} moves codes as they are stored; leave dtype out", form));
  if (!model.storage->codes || model.storage->codes->form != form)
    return fail(
        Code::unsupported,
        fmt::format("quant={}: codes are only moved, and the weights of {} are stored as {}", form,
                    model.name,
                    model.storage->codes              ? model.storage->codes->text
                    : !model.storage->decoded.empty() ? model.storage->decoded_from
                    : model.stored                    ? to_string(*model.stored)
                                                      : "plain values"));
  if (!model.storage->merged.empty())
    return fail(Code::unsupported,
                fmt::format("quant={}: adapters change values; merge them into decoded ones, "
                            "without quant",
                            form));
  return {};
}

/// The layout of the tensors as they are stored, by their own names; of an engine, that of values.
Result<ModelLayout> layout_of_codes(const LayoutSpec& spec, const Model& model,
                                    const std::string& rules_folder, LayoutSide& side) {
  FamilyInput input{model.storage->codes->tensors, nullptr};
  input.model_type = model.model_type;
  if (spec.family == "fsdp") return fsdp_layout(spec, input);
  if (spec.family == "rules") {
    const RuleSet rules = RESHARD_TRY(read_rules(in_folder(rules_folder, spec.file)));
    return layout_by_rules_of(spec, model, rules, model.storage->codes->tensors);
  }
  input.config = model.config_or_null();
  if (spec.family == "vllm") input.model = model.tensors;
  return build(spec, input, model, rules_folder, side);
}

Result<LayoutSide> codes_side(LayoutSpec spec, const Model& model,
                              const std::string& rules_folder) {
  RESHARD_TRY(check_codes_of(spec, model));
  const std::string name = to_string(spec);
  spec.keys.erase("quant");
  LayoutSide side;
  side.as_codes = true;
  const ModelLayout values = RESHARD_TRY(layout_of_codes(spec, model, rules_folder, side));
  side.values = std::make_shared<const ModelLayout>(
      RESHARD_TRY(codes_layout(values, *model.storage->codes, name, spec.family == "vllm")));
  side.notes = RESHARD_TRY(layout_notes(spec, model.config_or_null()));
  return side;
}

/// The tp nearest to that of a layout of codes that is refused, at which none is; 0 if there is
/// none or the layout has no tp.
Index nearest_tp(LayoutSpec spec, const Model& model, const std::string& rules_folder) {
  constexpr Index kMaxTp = 1024;
  const auto tp = spec.integer("tp", 1);
  if (!tp || *tp == 1 || *tp > kMaxTp || spec.family != "vllm") return 0;
  const auto fits = [&](Index size) {
    spec.keys["tp"] = fmt::to_string(size);
    return codes_side(spec, model, rules_folder).has_value();
  };
  if (!fits(1)) return 0;
  for (Index away = 1; away < *tp; ++away)
    for (const Index size : {*tp - away, *tp + away})
      if (fits(size)) return size;
  return 1;
}

Result<LayoutSide> made_codes_side(const LayoutSpec& spec, const Model& model,
                                   const std::string& rules_folder) {
  auto side = codes_side(spec, model, rules_folder);
  if (side || side.error().code != Code::unsupported) return side;
  const Index tp = model.storage->codes ? nearest_tp(spec, model, rules_folder) : 0;
  if (tp > 0) side.error().message += fmt::format("; the nearest that works is tp={}", tp);
  return side;
}

/// `own`: the side that the checkpoint itself is, with all that it stores. `traced`: what `spec`
/// reads.
Result<LayoutSide> side_of(LayoutSpec spec, const Model& model, const std::string& rules_folder,
                           std::optional<BlockGrid> grid, bool own = false,
                           std::shared_ptr<const TracedLayout> traced = nullptr) {
  RESHARD_TRY(name_stored(spec, model));
  if (asks_for_codes(spec)) return made_codes_side(spec, model, rules_folder);
  auto notation = RESHARD_TRY(take_notation(spec, grid));
  if (notation && traced) notation->name = traced->layout.name;
  if (notation && notation->as_stored) {
    notation->format = model.stored->format;
    notation->others = model.stored->others;
  }
  if (notation) notation->format = with_stored_scales(notation->format, model);
  const bool alike =
      notation && model.stored &&
      (notation->as_stored ||
       (model.stored->others.empty() && stored_alike(model.stored->format, notation->format)));
  const std::set<std::string>* stored = alike ? &model.stored->tensors : nullptr;
  FamilyInput input{model.tensors, model.config_or_null()};
  input.model_type = model.model_type;
  if (notation) input.expert_block = expert_block(*notation, *model.tensors, stored);
  // Weights that are neither dequantised nor quantised keep all that is stored with them.
  const bool changes = notation.has_value() || model.is_dequantised();
  input.plain = !own && changes && !(alike && keeps_input_scales(*notation, model));
  // Files that stack experts keep that form. Quantised ones have each expert by itself, as engines
  // read them.
  const bool is_hf = model.weights && model.weights->kind() == Checkpoint::Kind::hf;
  if (is_hf && !notation && !model.storage->file_form.empty())
    input.file_form = &model.storage->file_form;
  LayoutSide side{.values = nullptr, .traced = std::move(traced)};
  input.lacked = &side.lacked;
  side.values = std::make_shared<const ModelLayout>(
      RESHARD_TRY(build(spec, input, model, rules_folder, side)));
  side.notes = RESHARD_TRY(layout_notes(spec, model.config_or_null()));
  if (!notation) return side;
  if (side.by_card && !alike)
    return fail(Code::unsupported,
                fmt::format("the card of {} does not say which tensors the engine quantises, and "
                            "the checkpoint is not stored in {}; give one that is, or no quant",
                            model.model_type, to_string(notation->format)));
  // Scales of integers have the dtype of the weights, as compressed-tensors makes them.
  if (!alike && has_integers(notation->format))
    notation->format.scale = usual_dtype(*side.values).value_or(notation->format.scale);
  side.quantised = std::make_shared<const QuantisedLayout>(
      RESHARD_TRY(quantised_as(*notation, side.values, stored)));
  side.values = side.quantised->values;
  (spec.family == "hf" ? side.method : side.modules) = notation->method;
  if (spec.family != "hf") return side;
  if (!side.method && alike && model.stored_method &&
      (notation->as_stored || supports(*model.stored_method, notation->format)))
    side.method = model.stored_method;
  if (!side.method)
    side.method =
        default_quant_method(notation->format, !side.quantised->choice.input_first.empty());
  return side;
}

Result<LayoutSide> traced_side(const LayoutSpec& spec, const Model& model) {
  auto traced = std::make_shared<const TracedLayout>(RESHARD_TRY(trace_layout(spec, model)));
  return side_of(traced->notation, model, "", std::nullopt, false, traced);
}

}  // namespace

Result<LayoutSide> make_one_side(const std::string& text, const Model& model,
                                 const std::string& rules_folder, std::optional<BlockGrid> grid) {
  if (model.tensors == nullptr)
    return fail(Code::invalid_argument,
                fmt::format("layout '{}': the model is empty; open one with open_model()", text));
  const LayoutSpec spec = RESHARD_TRY(read_layout_text(text));
  const auto stay = check_values_stay(spec, model);
  auto side = !stay                       ? tl::unexpected(stay.error())
              : takes_engine(spec.family) ? traced_side(spec, model)
                                          : side_of(spec, model, rules_folder, grid);
  if (side) return side;
  const std::string& said = side.error().message;
  if (said.starts_with("layout") || said.starts_with(text))
    return tl::unexpected(std::move(side).error());
  return tl::unexpected(std::move(side).error().in(fmt::format("layout '{}'", text)));
}

Result<LayoutSide> quantised_side(std::shared_ptr<const ModelLayout> values,
                                  const SideChoice& choice) {
  const std::string format = to_string(choice.format);
  if (choice.method && !supports(*choice.method, choice.format))
    return fail(Code::unsupported,
                fmt::format("quant_method={} does not support {}", name(*choice.method), format));
  // The family only decides whether scales of experts are refined: choice has the rest.
  QuantNotation notation{
      "vllm", values->name() + " quant=" + format, choice.format, choice.grid, {}};
  notation.method = choice.method;
  LayoutSide side;
  side.quantised = std::make_shared<const QuantisedLayout>(
      RESHARD_TRY(quantised_as(notation, std::move(values), &choice.tensors)));
  side.values = side.quantised->values;
  (choice.files ? side.method : side.modules) = choice.method;
  return side;
}

Result<std::shared_ptr<const ModelLayout>> make_layout(const std::string& text, const Model& model,
                                                       const std::string& rules_folder) {
  return RESHARD_TRY(make_side(text, model, rules_folder)).stored();
}

Result<std::shared_ptr<const ModelLayout>> own_layout(const Model& model) {
  return RESHARD_TRY(own_side(model)).stored();
}

bool holds_codes(const Model& model, const ModelLayout& layout) {
  return model.storage->codes && layout.model().digest() == model.storage->codes->tensors->digest();
}

Result<LayoutSide> own_side(const Model& model, bool as_codes) {
  RESHARD_CHECK(model.weights.has_value());
  if (model.weights->kind() == Checkpoint::Kind::hf) {
    const LayoutSpec hf =
        RESHARD_TRY(read_layout_text(as_codes ? "hf:quant=" + model.storage->codes->form : "hf"));
    LayoutSide side = RESHARD_TRY(side_of(hf, model, "", std::nullopt, true));
    if (!model.stored) return side;
    side.values = RESHARD_TRY(input_last(side.values, model.stored->input_first));
    side.quantised = std::make_shared<const QuantisedLayout>(
        RESHARD_TRY(quantise_layout(side.values, *model.stored)));
    side.method = model.stored_method;
    return side;
  }
  if (model.pieces_layout) return LayoutSide{model.pieces_layout};
  if (model.weights->kind() == Checkpoint::Kind::dcp)
    return LayoutSide{std::make_shared<const ModelLayout>(
        RESHARD_TRY(dcp::piece_layout(*model.weights, model.tensors, model.storage->file_form)))};
  const auto index = model.name + "/reshard.json";
  // A checkpoint contains its rules. A downloaded one must not name files outside its folder.
  if (const auto spec = read_layout_text(model.weights->layout())) {
    if (takes_engine(spec->family))
      return fail(Code::corrupt,
                  fmt::format("{}: layout '{}': a checkpoint has the file of a traced layout, and "
                              "names it explicit:FILE",
                              index, model.weights->layout()));
    std::vector<std::string> files;
    if (!spec->file.empty()) files.push_back(spec->file);
    if (const auto map = spec->keys.find("expert_map"); map != spec->keys.end())
      files.push_back(map->second);
    for (const std::string& file : files)
      if (auto plain = files::check_file_name(file); !plain)
        return tl::unexpected(std::move(plain).error().in(index + ": layout"));
    if (model.config && with_explicit_defaults(*spec, *model.config).keys != spec->keys)
      return fail(Code::corrupt,
                  fmt::format("{}: layout '{}' does not say what the norms of {} hold; write "
                              "gamma=zero_centered, as Megatron trains it, or gamma=stored, as the "
                              "checkpoint has them",
                              index, model.weights->layout(), model.config->architecture));
  }
  auto side = make_side(model.weights->layout(), model, model.weights->folder());
  if (side) return side;
  Error error = std::move(side).error().in(index);
  // The request did not write this layout: the file is wrong.
  if (error.code == Code::invalid_argument) error.code = Code::corrupt;
  return tl::unexpected(std::move(error));
}

}  // namespace reshard
