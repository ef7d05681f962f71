// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/module_testutil.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "reshard/base/check.h"

namespace reshard::megatron {
namespace {

template <class T>
T must(Result<T> result) {
  if (!result) std::fprintf(stderr, "%s\n", result.error().message.c_str());
  RESHARD_CHECK(result.has_value());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// "model.layers.7.mlp..." -> 7; -1 where there is no layer.
Index layer_of(std::string_view canonical) {
  constexpr std::string_view kKey = "layers.";
  const std::size_t at = canonical.find(kKey);
  if (at == std::string_view::npos) return -1;
  Index layer = -1;
  std::from_chars(canonical.data() + at + kKey.size(), canonical.data() + canonical.size(), layer);
  return layer;
}

bool is_expert(std::string_view name) { return name.find(".experts.") != std::string_view::npos; }

/// A weight that Transformer Engine would keep in FP8.
bool is_linear(std::string_view name) {
  return name.find("linear_") != std::string_view::npos &&
         name.find("norm") == std::string_view::npos && name.find("bias") == std::string_view::npos;
}

int merged_index(int dim, MergedDims merged) {
  const auto below = static_cast<unsigned>(merged.bits) & ((1U << dim) - 1);
  return dim - std::popcount(below);
}

}  // namespace

ModuleUnderTest::ModuleUnderTest(std::shared_ptr<const ModelLayout> layout,
                                 const ModelConfig& config, Rank rank, const ModuleOptions& options)
    : layout_(std::move(layout)), rank_(rank), options_(options), memory_(layout_) {
  const std::vector<Rank> ranks{rank};
  memory_ = must(RankBuffers::allocate(layout_, ranks, {.shared = options.shared}));
  for (SlotId slot : layout_->slots_of(rank)) add_tensor(slot);
  add_groups(config);
  number_layers();
}

void ModuleUnderTest::add_tensor(SlotId id) {
  const Slot& slot = layout_->slot(id);
  const std::size_t dot = slot.name.rfind('.');
  Module& parent = dot == std::string::npos
                       ? *module_
                       : module_->submodule(std::string_view(slot.name).substr(0, dot));
  const std::string name = dot == std::string::npos ? slot.name : slot.name.substr(dot + 1);
  const Dims shape = layout_->stored_shape(id, rank_);
  const std::span memory(memory_.at(rank_, id), static_cast<std::size_t>(memory_.bytes(rank_, id)));
  TensorView view = must(tensor_view(memory, slot.dtype, shape));
  if (name != "expert_bias") {
    must(parent.register_parameter(name, view, attributes_of(id)));
    return;
  }
  if (options_.bf16_expert_bias) {
    extra_.push_back(must(make_tensor(DType::bf16, shape)));
    view = extra_.back().view;
  }
  must(parent.register_buffer(name, view));
  extra_.push_back(must(make_tensor(DType::f32, shape)));
  must(parent.register_buffer("local_tokens_per_expert", extra_.back().view, false));
}

ParameterAttributes ModuleUnderTest::attributes_of(SlotId id) const {
  const Slot& slot = layout_->slot(id);
  ParameterAttributes out;
  out.fp8_weight = options_.mark_fp8 && is_linear(slot.name);
  out.allreduce = !is_expert(slot.name) || group(1, "ep")->size() == 1;
  const Section& first = slot.sections[0];
  for (int d = 0; d < first.extent.size(); ++d) {
    if (first.cuts[static_cast<std::size_t>(d)] == CutId(0)) continue;
    out.tensor_model_parallel = true;
    out.partition_dim = merged_index(d, slot.merged);
    if (d != slot.stack_dim || slot.sections.size() == 1) continue;
    const bool equal = std::ranges::all_of(
        slot.sections, [&](const Section& s) { return s.extent[d] == first.extent[d]; });
    if (equal) {
      out.partition_stride = static_cast<Index>(slot.sections.size());
      continue;
    }
    const auto members = static_cast<Index>(group(is_expert(slot.name) ? 1 : 0, "tp")->size());
    std::vector<Index> sizes;
    for (const Section& s : slot.sections) sizes.push_back(s.extent[d] / members);
    out.partition_sizes = std::move(sizes);
  }
  return out;
}

GroupRanks ModuleUnderTest::group(int mesh_id, const char* axis_name) const {
  const Mesh& mesh = layout_->mesh(MeshId(mesh_id));
  const int axis = mesh.axis(axis_name);
  std::vector<Rank> ranks;
  Dims at;
  for (int i = 0; i < static_cast<int>(mesh.axes().size()); ++i)
    at.push_back(mesh.coordinate(rank_, i));
  const Index size = axis < 0 ? 1 : mesh.axes()[static_cast<std::size_t>(axis)].size;
  for (Index c = 0; c < size; ++c) {
    if (axis >= 0) at[axis] = c;
    ranks.emplace_back(mesh.rank_at(at).value() - (options_.own_world ? mesh.first().value() : 0));
  }
  return std::make_shared<const std::vector<Rank>>(std::move(ranks));
}

void ModuleUnderTest::add_groups(const ModelConfig& config) {
  for (Module* m : chunks()) {
    m->pg_collection = ProcessGroups{group(0, "tp"), group(0, "pp"), group(1, "ep"), group(0, "dp"),
                                     group(1, "tp")};
    m->config = TransformerConfig{};
    if (config.is_moe()) m->config->num_moe_experts = config.num_experts;
  }
}

std::vector<Module*> ModuleUnderTest::chunks() {
  std::vector<Module*> found;
  while (Module* chunk = module_->child("model" + std::to_string(found.size())))
    found.push_back(chunk);
  if (found.empty()) found.push_back(module_.get());
  return found;
}

void ModuleUnderTest::number_layers() {
  for (SlotId id : layout_->slots_of(rank_)) {
    const Slot& slot = layout_->slot(id);
    constexpr std::string_view kKey = "layers.";
    const std::size_t at = slot.name.find(kKey);
    if (at == std::string::npos) continue;
    const std::size_t end = slot.name.find('.', at + kKey.size());
    const auto& part = slot.sections[0].parts[0];
    const bool mtp = slot.name.find("mtp.layers.") != std::string::npos;
    const Index layer = layer_of(mtp ? slot.name : layout_->model()[part.tensor].name);
    if (layer >= 0)
      module_->submodule(std::string_view(slot.name).substr(0, end)).layer_number = layer + 1;
  }
}

void ModuleUnderTest::fill(const Oracle& oracle) {
  invalidate_chunks();
  const auto tensors = get_refit_tensor_dict(*module_);
  for (SlotId id : layout_->slots_of(rank_)) {
    const TensorPtr* tensor = tensors->find(layout_->slot(id).name);
    RESHARD_CHECK(tensor != nullptr);
    for (const Fragment& f : layout_->local(id, rank_).fragments) {
      const CanonicalTensor& whole = layout_->model()[f.tensor];
      must(oracle_fill(oracle, whole.name, whole.shape, (*tensor)->view.dtype, f.box, f.where,
                       (*tensor)->view.data));
    }
  }
}

std::string ModuleUnderTest::wrong(const Oracle& oracle, const std::vector<std::string>& except) {
  std::string text;
  int found = 0;
  invalidate_chunks();
  const auto tensors = get_refit_tensor_dict(*module_);
  for (SlotId id : layout_->slots_of(rank_)) {
    const std::string& name = layout_->slot(id).name;
    if (std::ranges::find(except, name) != except.end()) continue;
    const Tensor& tensor = **tensors->find(name);
    for (const Fragment& f : layout_->local(id, rank_).fragments) {
      const CanonicalTensor& whole = layout_->model()[f.tensor];
      const auto mismatch = must(oracle_check(oracle, whole.name, whole.shape, tensor.view.dtype,
                                              f.box, f.where, tensor.view.data));
      if (mismatch && ++found <= 3)
        text += "rank " + std::to_string(rank_.value()) + " " + name + " (" + whole.name +
                "): " + to_string(*mismatch) + "\n";
    }
  }
  return text;
}

void ModuleUnderTest::invalidate_chunks() {
  if (chunks().front() != module_.get()) invalidate_refit_tensor_cache(*module_);
}

void ModuleUnderTest::clear() {
  invalidate_chunks();
  for (const NamedTensor& t : get_refit_tensor_dict(*module_)->items())
    if (t.tensor->mxfp8 == nullptr) std::ranges::fill(bytes_of(t.tensor->view), std::byte{0});
}

}  // namespace reshard::megatron
