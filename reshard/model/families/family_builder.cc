// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/family_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reshard/model/quant/files.h"

namespace reshard::families {

FamilyBuilder::FamilyBuilder(const LayoutSpec& spec, const FamilyInput& input)
    : family_(spec.family),
      c_(*input.config),
      hf_(c_),
      m_(*input.model),
      b_(to_string(spec), input.model) {}

Result<TensorId> FamilyBuilder::find(const std::string& name) const {
  if (const auto id = m_.find(name)) return *id;
  return fail(Code::not_found,
              fmt::format("{}: tensor '{}' is missing from the model", family_, name));
}

Result<> FamilyBuilder::read_dtype(const LayoutSpec& spec, std::optional<DType> otherwise) {
  dtype_ = RESHARD_TRY(spec.dtype());
  if (!dtype_) dtype_ = otherwise;
  return {};
}

void FamilyBuilder::add(std::string name, int stack_dim, std::vector<Section> sections,
                        Stored how) {
  add_on(mesh_, ranks_, std::move(name), stack_dim, std::move(sections), how);
}

void FamilyBuilder::add_on(MeshId mesh, RankSetId ranks, std::string name, int stack_dim,
                           std::vector<Section> sections, Stored how) {
  const DType canonical = m_[sections[0].parts[0].tensor].dtype;
  const DType usual = dtype_ && is_convertible(canonical) ? *dtype_ : canonical;
  const DType dtype = how.dtype.value_or(usual);
  b_.add(Slot{.name = std::move(name),
              .dtype = dtype,
              .mesh = mesh,
              .ranks = ranks,
              .stack_dim = stack_dim,
              .padded = how.padded,
              .sections = std::move(sections),
              .merged = how.merged,
              .map = how.map,
              .casts = how.dtype || dtype_});
}

Result<> FamilyBuilder::replicated(std::string name, const std::string& hf) {
  add(std::move(name), 0, sections(whole_tensor(m_, RESHARD_TRY(find(hf)))));
  return {};
}

std::vector<std::pair<std::string, std::string>> FamilyBuilder::cache_scales(LayerAt at) const {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string scale : {"q_scale", "k_scale", "v_scale"}) {
    const std::array<std::string, 3> modules = {"", "attn.", scale.substr(0, 1) + "_proj."};
    const auto there = std::find_if(modules.begin(), modules.end(), [&](const std::string& module) {
      return m_.find(hf_.mixer(at, module + scale)).has_value();
    });
    if (there != modules.end()) found.emplace_back(hf_.mixer(at, *there + scale), scale);
  }
  return found;
}

void FamilyBuilder::omit_input_scales() {
  for (Index i = 0; i < m_.size(); ++i)
    if (const TensorId id(static_cast<TensorId::rep>(i)); is_input_scale(m_[id].name)) b_.omit(id);
}

Result<> FamilyBuilder::vocabulary(std::string name, const std::string& hf, Index multiple) {
  const TensorId id = RESHARD_TRY(find(hf));
  const Index rows = (c_.vocab_size + multiple - 1) / multiple * multiple;
  Section section{{rows, c_.hidden_size}, {tp_}, {}};
  place(section, id, Box::whole(m_[id].shape), {0, 0});
  add(std::move(name), 0, sections(std::move(section)), {.padded = rows != c_.vocab_size});
  return {};
}

void FamilyBuilder::omit_mtp() {
  std::vector<std::string> fronts;
  for (Index m = 0; m < c_.num_mtp; ++m) {
    const auto names = hf_.mtp(m);
    fronts.insert(fronts.end(),
                  {names.embedding_norm, names.hidden_norm, names.projection, names.final_norm});
    for (std::size_t i = 0; i < c_.mtp_block.size(); ++i)
      fronts.push_back(hf_.layer(LayerAt(static_cast<Index>(i), m), ""));
  }
  for (Index i = 0; i < m_.size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    if (std::any_of(fronts.begin(), fronts.end(),
                    [&](const std::string& front) { return m_[id].name.starts_with(front); }))
      b_.omit(id);
  }
}

Result<> FamilyBuilder::divides(const std::string& family, const char* part, Index n,
                                const char* whole, Index size, const char* hint) {
  if (size % n == 0) return {};
  return fail(Code::invalid_argument,
              fmt::format("{}: {}={} does not divide {}={}{}", family, part, n, whole, size, hint));
}

Result<> FamilyBuilder::check_ep(const std::string& family, Index ep, const ModelConfig& c) {
  if (ep == 1 || c.is_moe()) return {};
  return fail(Code::invalid_argument,
              fmt::format("{}: ep={} needs a model with experts; {} has none, so ep must be 1",
                          family, ep, c.architecture));
}

bool has(const std::vector<LayerKind>& kinds, Mixer mixer) {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const LayerKind& kind) { return kind.mixer == mixer; });
}

bool has(const std::vector<LayerKind>& kinds, Ffn ffn) {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const LayerKind& kind) { return kind.ffn == ffn; });
}

std::vector<Section> sections(Section first) {
  std::vector<Section> list;
  list.push_back(std::move(first));
  return list;
}

std::vector<Section> sections(Section first, Section second) {
  std::vector<Section> list;
  list.reserve(2);
  list.push_back(std::move(first));
  list.push_back(std::move(second));
  return list;
}

}  // namespace reshard::families
