// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/commands.h"
#include "cli/inspect/layout_report.h"
#include "cli/inspect/shard_map_report.h"
#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/plan_text.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/inspect/explain_layout.h"
#include "reshard/convert/inspect/tensor_kinds.h"
#include "reshard/convert/layout_pair.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/layout_side.h"
#include "reshard/io/make_layout.h"

namespace reshard::cli {
namespace {

Index parameters_of(const ModelSpec& tensors) {
  Index n = 0;
  for (const CanonicalTensor& t : tensors.tensors()) n += volume(t.shape);
  return n;
}

std::map<std::string, Index> bytes_by_dtype(const ModelSpec& tensors) {
  std::map<std::string, Index> bytes;
  for (const CanonicalTensor& t : tensors.tensors()) bytes[std::string(name(t.dtype))] += t.bytes();
  return bytes;
}

std::string_view spoken(Mixer mixer) {
  switch (mixer) {
    case Mixer::attention: return "attention";
    case Mixer::mla: return "latent attention";
    case Mixer::mamba2: return "Mamba-2";
    case Mixer::gated_delta: return "gated delta net";
    case Mixer::none: break;
  }
  return "";
}

std::string_view spoken(Ffn ffn) {
  switch (ffn) {
    case Ffn::dense: return "MLP";
    case Ffn::experts: return "experts";
    case Ffn::none: break;
  }
  return "";
}

/// "attention and experts", "Mamba-2".
std::string spoken(const LayerKind& kind) {
  const auto mixer = spoken(kind.mixer), ffn = spoken(kind.ffn);
  return fmt::format("{}{}{}", mixer, mixer.empty() || ffn.empty() ? "" : " and ", ffn);
}

/// Number of layers of each kind, in the order of the first of each.
std::vector<std::pair<std::string, Index>> layer_kinds(const ModelConfig& config) {
  std::vector<std::pair<std::string, Index>> kinds;
  for (const LayerKind& layer : config.layers) {
    const std::string kind = spoken(layer);
    const auto known =
        std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == kind; });
    if (known == kinds.end())
      kinds.emplace_back(kind, 1);
    else
      ++known->second;
  }
  return kinds;
}

Json::Object model_object(const Model& model) {
  Json::Object object;
  object.push_back({"architecture", model.config ? Json(model.config->architecture) : Json()});
  object.push_back({"quantization", model.config && !model.config->quantization.empty()
                                        ? Json(model.config->quantization)
                                        : Json()});
  object.push_back({"stored_as", model.stored           ? Json(to_string(*model.stored))
                                 : model.storage->codes ? Json(model.storage->codes->text)
                                 : model.storage->decoded.empty()
                                     ? Json()
                                     : Json(model.storage->decoded_from)});
  object.push_back({"layers", model.config ? Json(model.config->num_hidden_layers) : Json()});
  if (model.config) {
    Json::Object layers;
    for (const auto& [kind, count] : layer_kinds(*model.config))
      layers.push_back({kind, Json(count)});
    object.push_back({"layer_kinds", Json(std::move(layers))});
  }
  object.push_back({"parameters", Json(parameters_of(*model.tensors))});
  object.push_back({"tensors", Json(model.tensors->size())});
  object.push_back({"bytes", Json(model.tensors->bytes())});
  if (model.weights)
    object.push_back({"files", Json(static_cast<Index>(model.weights->num_files()))});
  Json::Object dtypes;
  for (const auto& [dtype, bytes] : bytes_by_dtype(*model.tensors))
    dtypes.push_back({dtype, Json(bytes)});
  object.push_back({"bytes_by_dtype", Json(std::move(dtypes))});
  Json::Array kinds;
  for (const TensorKind& kind : tensor_kinds(*model.tensors))
    kinds.emplace_back(Json::Object{{"pattern", Json(kind.pattern)},
                                    {"count", Json(kind.count)},
                                    {"dtype", Json(std::string(name(kind.dtype)))},
                                    {"shape", shape_json(kind.shape)},
                                    {"bytes", Json(kind.bytes)}});
  object.push_back({"kinds", Json(std::move(kinds))});
  Json::Array left_out;
  for (const std::string& stray : model.left_out) left_out.emplace_back(stray);
  if (!left_out.empty()) object.push_back({"left_out", Json(std::move(left_out))});
  return object;
}

std::string model_text(const Model& model, const Style& style) {
  std::string text = style.title(model_line(model)) + "\n";
  if (model.config) {
    text += "  " + model.config->architecture;
    if (model.config->tie_word_embeddings) text += ", embeddings tied";
    if (model.config->is_moe()) text += fmt::format(", {} experts", model.config->num_experts);
    if (model.config->num_mtp > 0)
      text += ", " + plural(model.config->num_mtp, "module") + " for multi-token prediction";
    text += "\n";
    for (const auto& [kind, count] : layer_kinds(*model.config))
      text += fmt::format("  {} of {}\n", plural(count, "layer"), kind);
  } else {
    text += fmt::format("  no config: {}\n", model.no_config);
  }
  if (model.weights) {
    const auto& w = *model.weights;
    text +=
        fmt::format("  {} in {}, layout {}\n", plural(static_cast<Index>(w.num_files()), "file"),
                    w.folder(), w.kind() == Checkpoint::Kind::hf ? "hf" : w.layout());
    if (model.stored)
      text += fmt::format("  {} stored as {}, with scales; below as plain values\n",
                          plural(static_cast<Index>(model.stored->tensors.size()), "tensor"),
                          to_string(*model.stored));
    if (model.storage->codes)
      text +=
          fmt::format("  {} stored as {}, moved as it is with quant={}; below as plain values\n",
                      plural(static_cast<Index>(model.storage->codes->weights.size()), "tensor"),
                      model.storage->codes->text, model.storage->codes->form);
    else if (!model.storage->decoded.empty())
      text += fmt::format("  {} stored as {}, which is read only; below as plain values\n",
                          plural(static_cast<Index>(model.storage->decoded.size()), "tensor"),
                          model.storage->decoded_from);
  }
  for (const auto& [dtype, bytes] : bytes_by_dtype(*model.tensors))
    text += fmt::format("  {} in {}\n", human_bytes(bytes), dtype);
  Table table({{"tensors"},
               {"count", Table::Align::right},
               {"dtype"},
               {"shape"},
               {"bytes", Table::Align::right}});
  for (const TensorKind& kind : tensor_kinds(*model.tensors))
    table.add({kind.pattern, grouped(kind.count), std::string(name(kind.dtype)),
               to_string(kind.shape), human_bytes(kind.bytes)});
  return text + "\n" + table.text(style);
}

Json::Array ranks_list(const ModelLayout& layout) {
  Json::Array list;
  layout.ranks().for_each([&](Rank r) {
    list.emplace_back(
        Json::Object{{"rank", Json(Index{r.value()})}, {"bytes", Json(local_bytes(layout, r))}});
  });
  return list;
}

std::string ranks_text(const ModelLayout& layout, const Style& style) {
  // Ranks with equal bytes, in the order of the first of each.
  std::map<Index, RankSet> ranks;
  std::vector<Index> order;
  layout.ranks().for_each([&](Rank r) {
    const Index bytes = local_bytes(layout, r);
    if (!ranks.contains(bytes)) order.push_back(bytes);
    ranks[bytes].insert(r);
  });
  Table table({{"bytes per rank", Table::Align::right}, {"", Table::Align::right}, {"ranks"}});
  for (Index bytes : order)
    table.add({grouped(bytes), human_bytes(bytes), to_string(ranks[bytes])});
  return "\n" + table.text(style);
}

/// A layout to show, and how files and modules hold its slots.
struct Inspected {
  std::shared_ptr<const ModelLayout> layout;
  SlotFiles files;
  std::vector<std::string> notes;  ///< choices that the layout made by rules.
  const ModelLayout* operator->() const { return layout.get(); }
};
using Layouts = std::vector<Inspected>;

Result<> add(Layouts& layouts, Result<LayoutSide> side) {
  if (!side) return tl::unexpected(std::move(side).error());
  layouts.push_back({side->stored(), RESHARD_TRY(SlotFiles::of(*side)), side->notes});
  return {};
}

/// The layouts asked for or, if none was, the checkpoint's own.
Result<Layouts> layouts_of(const InspectArguments& a, const Model& model) {
  Layouts layouts;
  std::set<std::string> lacked;
  for (const std::string& text : a.layouts) {
    LayoutSide side = RESHARD_TRY(make_side(text, model));
    lacked.insert(side.lacked.begin(), side.lacked.end());
    RESHARD_TRY(add(layouts, std::move(side)));
  }
  RESHARD_TRY(check_ignored(model, nullptr, lacked));
  const bool own = model.weights && (a.rank || model.weights->kind() == Checkpoint::Kind::ranks);
  if (layouts.empty() && own) RESHARD_TRY(add(layouts, own_side(model)));
  return layouts;
}

/// The rank asked for. Errors: no layout or several; a rank that the layout lacks.
Result<std::optional<Rank>> rank_of(const InspectArguments& a, const Model& model,
                                    const Layouts& layouts) {
  if (!a.rank) return std::optional<Rank>();
  if (layouts.empty())
    return fail(
        Code::invalid_argument,
        fmt::format("{} has no ranks of its own; say of which layout with --layout", model.name));
  if (layouts.size() > 1)
    return fail(Code::invalid_argument,
                fmt::format("--rank {} needs one --layout, not {}", *a.rank, layouts.size()));
  const Rank rank(static_cast<Rank::rep>(*a.rank));
  if (layouts[0]->ranks().contains(rank)) return rank;
  return fail(Code::invalid_argument,
              fmt::format("rank {} is not in layout '{}', whose ranks are {}", *a.rank,
                          layouts[0]->name(), to_string(layouts[0]->ranks())));
}

Json notes_list(const std::vector<std::string>& notes) {
  Json::Array list;
  for (const std::string& note : notes) list.emplace_back(note);
  return Json(std::move(list));
}

std::string report_json(const Model& model, const Layouts& layouts, std::optional<Rank> rank) {
  Json::Object object = model_object(model);
  if (layouts.size() == 1) object.push_back({"layout", Json(layouts[0]->name())});
  if (rank) {
    object.push_back({"rank", Json(Index{rank->value()})});
    object.push_back({"local", Json(shard_map_json(*layouts[0].layout, layouts[0].files, *rank))});
  } else if (!layouts.empty()) {
    if (layouts.size() == 1) object.push_back({"ranks", Json(ranks_list(*layouts[0].layout))});
    Json::Array list;
    for (const auto& layout : layouts) {
      Json explanation = explanation_json(*layout.layout, layout.files);
      if (!layout.notes.empty())
        explanation.object()->push_back({"notes", notes_list(layout.notes)});
      list.push_back(std::move(explanation));
    }
    object.push_back({"layouts", Json(std::move(list))});
  }
  return json_report("inspect", std::move(object));
}

std::string report_text(const Model& model, const Layouts& layouts, std::optional<Rank> rank) {
  const Style style = Style::of_stdout();
  std::string text = model_text(model, style);
  if (rank) {
    for (const std::string& note : layouts[0].notes) text += style.quiet("  " + note) + "\n";
    return text + shard_map_text(*layouts[0].layout, layouts[0].files, *rank, style);
  }
  for (const auto& layout : layouts) {
    text += explanation_text(*layout.layout, layout.files, style);
    for (const std::string& note : layout.notes) text += style.quiet("  " + note) + "\n";
    text += ranks_text(*layout.layout, style);
  }
  return text;
}

}  // namespace

Result<int> execute(const InspectArguments& a) {
  const Model model = RESHARD_TRY(open_model(
      a.model, {.layers = a.layers, .exact = false, .ignore = a.ignore, .prefix = a.prefix}));
  const Layouts layouts = RESHARD_TRY(layouts_of(a, model));
  const auto rank = RESHARD_TRY(rank_of(a, model, layouts));
  print(a.json ? report_json(model, layouts, rank) : report_text(model, layouts, rank));
  return 0;
}

}  // namespace reshard::cli
