// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/transformers_modules.h"

#include <array>
#include <charconv>
#include <map>
#include <numeric>
#include <string_view>

namespace reshard {
namespace {

enum Projection : std::size_t { kGate, kUp, kDown, kProjections };
using ExpertTensors = std::array<std::optional<TensorId>, kProjections>;

constexpr std::string_view kExperts = ".experts.", kWeight = ".weight",
                           kMixtral = ".block_sparse_moe";

/// "model.layers.0.mlp.experts.3.up_proj.weight": block "model.layers.0.mlp", 3, up.
struct ExpertName {
  std::string_view block;
  Index expert = 0;
  Projection projection = kGate;
};

std::optional<ExpertName> expert_name(std::string_view name) {
  const std::size_t at = name.find(kExperts);
  if (at == std::string_view::npos || !name.ends_with(kWeight)) return std::nullopt;
  std::string_view rest = name.substr(at + kExperts.size());
  rest.remove_suffix(kWeight.size());
  ExpertName found{name.substr(0, at)};
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), found.expert);
  if (error != std::errc() || found.expert < 0) return std::nullopt;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  constexpr std::array<std::array<std::string_view, 2>, kProjections> kNames = {
      {{".gate_proj", ".w1"}, {".up_proj", ".w3"}, {".down_proj", ".w2"}}};
  for (std::size_t p = 0; p < kProjections; ++p)
    for (const std::string_view known : kNames[p])
      if (rest == known) {
        found.projection = static_cast<Projection>(p);
        return found;
      }
  return std::nullopt;
}

/// The experts of one layer.
class Block {
 public:
  void add(const ExpertName& name, TensorId id) {
    experts_[name.expert][name.projection] = id;
    ++num_tensors_;
  }

  /// True if experts 0, 1, ... have the same projections, with up and down among them, as matrices
  /// of one shape and dtype per projection, and gates as large as ups.
  bool stacks(const ModelSpec& model) const {
    const ExpertTensors& one = first();
    if (experts_.begin()->first != 0 || !one[kUp] || !one[kDown]) return false;
    if (experts_.rbegin()->first != static_cast<Index>(experts_.size()) - 1) return false;
    const std::size_t each = one[kGate] ? 3 : 2;
    if (num_tensors_ != each * experts_.size()) return false;
    const auto alike = [&](TensorId a, TensorId b) {
      return model[a].shape == model[b].shape && model[a].dtype == model[b].dtype;
    };
    for (const auto& [number, tensors] : experts_)
      for (std::size_t p = 0; p < kProjections; ++p) {
        if (tensors[p].has_value() != one[p].has_value()) return false;
        if (tensors[p] && (!alike(*tensors[p], *one[p]) || model[*one[p]].shape.size() != 2))
          return false;
      }
    return !one[kGate] || alike(*one[kGate], *one[kUp]);
  }

  /// The first tensor of each stack. @pre stacks(model)
  TensorId first_up() const { return *first()[first()[kGate] ? kGate : kUp]; }
  TensorId first_down() const { return *first()[kDown]; }

  /// @pre stacks(model)
  ModuleTensor up(const ModelSpec& model, const std::string& block) const {
    if (!first()[kGate]) return stacked(model, block + ".experts.up_proj", {kUp});
    return stacked(model, block + ".experts.gate_up_proj", {kGate, kUp});
  }
  ModuleTensor down(const ModelSpec& model, const std::string& block) const {
    return stacked(model, block + ".experts.down_proj", {kDown});
  }

 private:
  const ExpertTensors& first() const { return experts_.begin()->second; }

  ModuleTensor stacked(const ModelSpec& model, std::string name,
                       std::initializer_list<Projection> halves) const {
    const TensorId from = *first()[*halves.begin()];
    const Dims one = model[from].shape;
    Section stack{
        {static_cast<Index>(experts_.size()), static_cast<Index>(halves.size()) * one[0], one[1]},
        {},
        {}};
    for (const auto& [number, tensors] : experts_) {
      Index row = 0;
      for (const Projection p : halves) {
        stack.parts.push_back({*tensors[p], Box::whole(one), {number, row, 0}, {1, 2}});
        row += one[0];
      }
    }
    return {std::move(name), from, std::move(stack)};
  }

  std::map<Index, ExpertTensors> experts_;
  std::size_t num_tensors_ = 0;
};

class NewNames {
 public:
  NewNames(const ModelConfig* config, bool mixtral)
      : mixtral_(mixtral), nemotron_(config != nullptr && config->model_type == "nemotron_h") {}

  std::string of(std::string name) const {
    constexpr std::string_view kBackbone = "backbone.";
    if (nemotron_ && name.starts_with(kBackbone)) name.replace(0, kBackbone.size(), "model.");
    if (const std::size_t at = name.find(kMixtral); mixtral_ && at != std::string::npos)
      name.replace(at, kMixtral.size(), ".mlp");
    return name;
  }

 private:
  bool mixtral_, nemotron_;
};

}  // namespace

Result<std::optional<int>> transformers_release(const LayoutSpec& spec) {
  if (!spec.keys.contains("transformers")) return std::nullopt;
  return RESHARD_TRY(spec.one_of("transformers", {"5", "4"})) == "4" ? 4 : 5;
}

std::string module_name(const ModelConfig& config, const std::string& name) {
  return NewNames(&config, config.model_type == "mixtral").of(name);
}

std::vector<ModuleTensor> transformers_modules(const ModelSpec& model, const ModelConfig* config,
                                               int major) {
  std::map<std::string_view, Block> blocks;
  std::vector<TensorId> ids;
  for (Index i = 0; i < model.size(); ++i) ids.emplace_back(static_cast<TensorId::rep>(i));
  if (major >= 5)
    for (const TensorId id : ids)
      if (const auto name = expert_name(model[id].name)) blocks[name->block].add(*name, id);
  std::erase_if(blocks, [&](const auto& entry) { return !entry.second.stacks(model); });
  bool mixtral = false;
  for (const auto& [block, experts] : blocks) mixtral |= block.ends_with(kMixtral);
  const NewNames names(major >= 5 ? config : nullptr, mixtral);

  std::vector<ModuleTensor> out;
  for (const TensorId id : ids) {
    const auto name = expert_name(model[id].name);
    const auto block = name ? blocks.find(name->block) : blocks.end();
    if (block == blocks.end()) {
      out.push_back({names.of(model[id].name), id});
      continue;
    }
    const Block& experts = block->second;
    const std::string front = names.of(std::string(block->first));
    if (experts.first_up() == id) out.push_back(experts.up(model, front));
    if (experts.first_down() == id) out.push_back(experts.down(model, front));
  }
  return out;
}

}  // namespace reshard
