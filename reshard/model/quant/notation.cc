// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/quant/notation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "reshard/base/closest_name.h"
#include "reshard/model/quant/blocks.h"
#include "reshard/model/quant/codes.h"

namespace reshard {
namespace {

/// Modules that are linear layers in vLLM, SGLang and Megatron's Transformer Engine layers, by the
/// last component of their canonical names.
constexpr std::array<std::string_view, 19> kLinear = {"q_proj",
                                                      "k_proj",
                                                      "v_proj",
                                                      "o_proj",
                                                      "gate_proj",
                                                      "up_proj",
                                                      "down_proj",
                                                      "q_a_proj",
                                                      "kv_a_proj_with_mqa",
                                                      "q_b_proj",
                                                      "kv_b_proj",
                                                      "w1",
                                                      "w2",
                                                      "w3",
                                                      "in_proj",
                                                      "out_proj",
                                                      "in_proj_qkvz",
                                                      "fc1_latent_proj",
                                                      "fc2_latent_proj"};

/// Further modules that Megatron quantises when it creates quantised parameters: all of Mamba's
/// input projection, and the projections of modules for multi-token prediction (checkpoints keep
/// these unquantised).
constexpr std::array<std::string_view, 3> kMegatronLinear = {"in_proj_ba", "eh_proj", "fc"};

bool has(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Result<std::vector<std::string>> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('+', at), text.size());
    if (end == at)
      return fail(
          Code::invalid_argument,
          fmt::format("quant_skip={}: write parts of names as A+B; no part may be empty", text));
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

Result<QuantMethod> method_of(const std::string& family, const std::string& text,
                              const QuantFormat& format) {
  const auto method = quant_method_from_name(text);
  if (!method)
    return fail(
        Code::invalid_argument,
        fmt::format("{}: quant_method={} is unknown{}; known methods are {}", family, text,
                    did_you_mean_one_of(text, known_quant_methods()), known_quant_methods()));
  if (family == "megatron")
    return fail(Code::invalid_argument,
                "megatron: quant_method is a key of hf, vllm, sglang and explicit");
  if (!supports(*method, format))
    return fail(Code::unsupported, fmt::format("{}: quant_method={} does not support {}", family,
                                               text, to_string(format)));
  return *method;
}

/// Errors: a part that no tensor has in its name, which may be a misspelt component of one.
Result<> check_skipped(const std::vector<std::string>& parts, const ModelSpec& model) {
  for (const std::string& part : parts) {
    const auto has_part = [&](const CanonicalTensor& t) {
      return t.name.find(part) != std::string::npos;
    };
    if (std::ranges::any_of(model.tensors(), has_part)) continue;
    std::set<std::string> components;
    for (const CanonicalTensor& t : model.tensors())
      for (std::size_t at = 0; at <= t.name.size();) {
        const std::size_t end = std::min(t.name.find('.', at), t.name.size());
        components.insert(t.name.substr(at, end - at));
        at = end + 1;
      }
    return fail(Code::not_found,
                fmt::format("quant_skip={}: no tensor of the model has this in its name{}", part,
                            did_you_mean(part, components)));
  }
  return {};
}

/// True if rows are cut into blocks with one byte of scale each, or into groups of integers.
/// Kernels, and the libraries that write such files, accept whole blocks only.
bool has_micro_blocks(const QuantFormat& f) {
  return f.block_rows == 1 && f.block_cols > 0 && (bits(f.scale) == 8 || has_integers(f));
}

/// Errors: experts that are one tensor of packed integers. Engines store them input first, with
/// words that run along the input.
Result<> check_experts(const QuantisedLayout& q, const std::string& family) {
  if (family == "hf") return {};
  for (const QuantisedLayout::Pair& pair : q.pairs) {
    if (!has_packed_integers(pair.format)) continue;
    const Slot& slot = q.values->slot(pair.values);
    if (slot.sections[0].extent.size() > 2)
      return fail(
          Code::unsupported,
          fmt::format("'{}' cannot be quantised as {}: engines hold packed experts input "
                      "first, [experts, in / {}, out], which is not supported; exclude them "
                      "with quant_skip",
                      slot.name, to_string(pair.format), packed_together(pair.format)));
  }
  return {};
}

/// The shape checks of a family's linear layers and experts.
class ShapeCheck {
 public:
  ShapeCheck(const std::string& family, const ModelLayout& layout, const QuantFormat& format)
      : family_(family), format_(format), layout_(layout), pieces_(layout) {}

  Result<> check(const Slot& slot) {
    if (has_micro_blocks(format_)) return check_micro(slot);
    return family_ == "vllm" || family_ == "sglang" ? check_engine(slot) : Result<>();
  }

 private:
  Result<> check_engine(const Slot& slot) {
    for (std::size_t k = 0; k < slot.sections.size(); ++k) {
      const Section& section = slot.sections[k];
      const int n = section.extent.size();
      const bool last = k + 1 == slot.sections.size();
      if (!last || is_cut(slot, section, n - 2))
        RESHARD_TRY(check(slot, section, n - 2, format_.block_rows, "rows"));
      if (is_cut(slot, section, n - 1))
        RESHARD_TRY(check(slot, section, n - 1, format_.block_cols, "columns"));
    }
    return {};
  }

  Result<> check_micro(const Slot& slot) {
    for (const Section& section : slot.sections)
      RESHARD_TRY(check(slot, section, section.extent.size() - 1, format_.block_cols, "columns"));
    // Transformer Engine keeps a second copy of each weight, quantised along its columns.
    return family_ == "megatron" ? check_all_rows(slot) : Result<>();
  }

  /// Checks the rows of the whole local weight on every rank.
  Result<> check_all_rows(const Slot& slot) {
    const int rows = slot.sections[0].extent.size() - 2;
    const Index block = format_.block_cols;
    const auto whole = [&](const Section& section) {
      const auto& pieces = pieces_.pieces(slot, section, rows);
      return std::ranges::all_of(pieces, [&](Interval p) { return p.size() % block == 0; });
    };
    if (std::ranges::all_of(slot.sections, whole)) return {};
    std::optional<Index> bad;
    layout_.rank_set(slot.ranks).for_each([&](Rank r) {
      Index held = 0;
      for (const Section& section : slot.sections) {
        const Index here = quant::local_dims(layout_, slot, section, r)[std::size_t(rows)].size();
        held = slot.stack_dim == rows ? held + here : std::max(held, here);
      }
      if (held % block != 0) bad = held;
    });
    return bad ? refuse(slot, *bad, "rows", block, true) : Result<>();
  }

  bool is_cut(const Slot& slot, const Section& section, int dim) {
    const auto& pieces = pieces_.pieces(slot, section, dim);
    return std::any_of(pieces.begin(), pieces.end(),
                       [&](Interval p) { return p.size() != section.extent[dim]; });
  }
  Result<> check(const Slot& slot, const Section& section, int dim, Index block, const char* what) {
    if (block == 0) return {};
    for (const Interval piece : pieces_.pieces(slot, section, dim))
      if (piece.size() % block != 0)
        return refuse(slot, piece.size(), what, block, is_cut(slot, section, dim));
    return {};
  }
  Result<> refuse(const Slot& slot, Index size, const char* what, Index block, bool cut) const {
    const char* who = family_ == "hf"         ? "readers of such files reject"
                      : family_ == "megatron" ? "Transformer Engine rejects"
                                              : "the engine rejects";
    return fail(Code::invalid_argument,
                fmt::format("a rank's {} {} of '{}' are not divisible by the quantisation block "
                            "of {}, which {}; {}, or set quant_grid=local or quant_grid=tensor to "
                            "quantise it nevertheless",
                            size, what, slot.name, block, who,
                            cut ? "cut into fewer parts" : "exclude it with quant_skip"));
  }

  const std::string& family_;
  const QuantFormat& format_;
  const ModelLayout& layout_;
  quant::PieceTable pieces_;
};

}  // namespace

Result<std::optional<QuantNotation>> take_quant(LayoutSpec& spec) {
  QuantNotation q{spec.family, to_string(spec), {}, {}, {}};
  const auto take = [&](const char* key) -> std::optional<std::string> {
    const auto node = spec.keys.extract(key);
    return node.empty() ? std::nullopt : std::optional(node.mapped());
  };
  const auto format = take("quant"), grid = take("quant_grid"), skip = take("quant_skip"),
             method = take("quant_method");
  if (!format && (grid || skip || method))
    return fail(
        Code::invalid_argument,
        fmt::format("{}: quant_grid, quant_skip and quant_method need quant=FORMAT", spec.family));
  if (!format) return std::optional<QuantNotation>();
  constexpr std::array<std::string_view, 5> kFamilies = {"hf", "megatron", "vllm", "sglang",
                                                         "explicit"};
  if (std::find(kFamilies.begin(), kFamilies.end(), spec.family) == kFamilies.end())
    return fail(
        Code::invalid_argument,
        fmt::format("{}: quant is a key of hf, megatron, vllm, sglang and explicit", spec.family));
  if (*format == "stored") {
    if (grid || skip || method)
      return fail(Code::invalid_argument,
                  fmt::format("{}: quant=stored keeps tensors, grids and names as they are; leave "
                              "quant_grid, quant_skip and quant_method out",
                              spec.family));
    q.as_stored = true;
    return std::optional(std::move(q));
  }
  const auto known = quant_format_from_name(*format);
  if (!known)
    return fail(
        Code::invalid_argument,
        fmt::format("{}: quant={} is unknown{}; known formats are {}, and stored; {} are moved as "
                    "they are stored",
                    spec.family, *format, did_you_mean_one_of(*format, known_quant_formats()),
                    known_quant_formats(), known_code_forms()));
  q.format = *known;
  if (spec.family == "megatron" && has_integers(q.format))
    return fail(Code::unsupported,
                fmt::format("megatron: quant={}: its modules hold no integers", *format));
  if (grid && *grid != "local" && *grid != "tensor")
    return fail(Code::invalid_argument,
                fmt::format("{}: quant_grid={} must be local or tensor", spec.family, *grid));
  if (grid) q.grid = *grid == "local" ? BlockGrid::local : BlockGrid::tensor;
  if (skip) q.skip = RESHARD_TRY(parts_of(*skip));
  if (method) q.method = RESHARD_TRY(method_of(spec.family, *method, q.format));
  return std::optional(std::move(q));
}

std::set<std::string> input_first_tensors(const ModelSpec& model) {
  std::set<std::string> names;
  for (const CanonicalTensor& t : model.tensors())
    if (t.shape.size() >= 3 &&
        (t.name.ends_with(".experts.gate_up_proj") || t.name.ends_with(".experts.down_proj")))
      names.insert(t.name);
  return names;
}

std::set<std::string> default_quantised(const ModelSpec& model, const std::string& family,
                                        const QuantFormat& format) {
  const bool mxfp4 = format.data == DType::f4 && format.scale == DType::f8_e8m0;
  std::set<std::string> names = input_first_tensors(model);
  if (mxfp4 && !names.empty() && family != "megatron") return names;
  names.clear();
  for (const CanonicalTensor& t : model.tensors()) {
    constexpr std::string_view kWeight = ".weight";
    std::string_view name = t.name;
    if (t.shape.size() != 2 || !name.ends_with(kWeight) || !is_convertible(t.dtype)) continue;
    name.remove_suffix(kWeight.size());
    const std::size_t dot = name.rfind('.');
    if (dot != std::string_view::npos) name.remove_prefix(dot + 1);
    if (has(kLinear, name) || (family == "megatron" && has(kMegatronLinear, name)))
      names.insert(t.name);
  }
  return names;
}

Index expert_block(const QuantNotation& notation, const ModelSpec& model,
                   const std::set<std::string>* stored) {
  const std::set<std::string> chosen =
      stored != nullptr ? *stored : default_quantised(model, notation.family, notation.format);
  for (const std::string& name : input_first_tensors(model))
    if (chosen.contains(name)) return std::max<Index>(1, notation.format.block_cols);
  return 1;
}

Result<QuantisedLayout> quantised_as(const QuantNotation& notation,
                                     std::shared_ptr<const ModelLayout> values,
                                     const std::set<std::string>* stored) {
  QuantChoice choice;
  choice.format = notation.format;
  choice.others = notation.others;
  choice.grid = notation.effective_grid();
  choice.tensors = stored != nullptr
                       ? *stored
                       : default_quantised(values->model(), notation.family, notation.format);
  choice.name = notation.name;
  if (notation.method) choice.scale_suffix = scale_suffix_of(*notation.method);
  const bool as_vllm = notation.family == "vllm" || notation.family == "explicit";
  choice.refines = as_vllm && notation.grid != BlockGrid::local &&
                   notation.method.value_or(QuantMethod::fp8) == QuantMethod::fp8;
  RESHARD_TRY(check_skipped(notation.skip, values->model()));
  std::erase_if(choice.tensors, [&](const std::string& name) {
    return std::any_of(notation.skip.begin(), notation.skip.end(), [&](const std::string& part) {
      return name.find(part) != std::string::npos;
    });
  });
  for (const std::string& name : input_first_tensors(values->model()))
    if (choice.tensors.contains(name)) choice.input_first.insert(name);
  values = RESHARD_TRY(input_last(std::move(values), choice.input_first));
  QuantisedLayout q = RESHARD_TRY(quantise_layout(std::move(values), std::move(choice)));
  RESHARD_TRY(check_experts(q, notation.family));
  const bool is_there = notation.family == "hf" && stored != nullptr;
  if (is_there || notation.grid) return q;
  ShapeCheck shapes(notation.family, *q.values, q.choice.format);
  for (const QuantisedLayout::Pair& pair : q.pairs)
    if (pair.refined == 0) RESHARD_TRY(shapes.check(q.values->slot(pair.values)));
  return q;
}

}  // namespace reshard
