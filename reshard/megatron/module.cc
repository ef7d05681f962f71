// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/module.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "reshard/base/hash.h"
#include "reshard/megatron/metadata.h"

namespace reshard::megatron {
namespace {

std::string joined(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

Result<> check_memory(std::string_view name, const TensorView& memory) {
  if (memory.strides.size() != memory.shape.size() || !is_contiguous(memory))
    return invalid(fmt::format("tensor '{}': its memory has gaps", name));
  if (memory.data == nullptr && memory.num_elements() > 0)
    return invalid(fmt::format("tensor '{}': no memory", name));
  return {};
}

void walk(Module& module, const std::string& path, std::unordered_set<const Module*>& seen,
          std::vector<NamedModule>& out) {
  if (!seen.insert(&module).second) return;
  out.push_back({path, &module});
  for (const Module::Child& c : module.children()) walk(*c.module, joined(path, c.name), seen, out);
}

std::vector<BufferPlace> places_of_buffers(Module& module, const LayerPrefixMap& layers) {
  std::vector<BufferPlace> out;
  for (const NamedModule& m : named_modules(module)) {
    const std::vector<Module::Buffer>& buffers = m.module->buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].persistent)
        out.push_back(
            {m.module, i,
             resolve_global_layer_number_in_name(joined(m.name, buffers[i].name), layers)});
  }
  return out;
}

bool same_groups(const ProcessGroups& a, const ProcessGroups& b) {
  const auto same = [](const GroupRanks& x, const GroupRanks& y) {
    return x == y || (x != nullptr && y != nullptr && *x == *y);
  };
  return same(a.tp, b.tp) && same(a.pp, b.pp) && same(a.ep, b.ep) && same(a.dp, b.dp) &&
         same(a.expt_tp, b.expt_tp);
}

std::vector<std::uint64_t> ids_of(const std::vector<Module*>& modules) {
  std::vector<std::uint64_t> ids;
  for (const Module* m : modules) ids.push_back(m->id());
  return ids;
}

template <class Items>
auto find_named(Items& items, std::string_view name) {
  return std::ranges::find_if(items, [&](const auto& item) { return item.name == name; });
}

}  // namespace

const TensorPtr& BufferPlace::tensor() const { return parent->buffers()[index].tensor; }

TensorDict::TensorDict(std::vector<NamedTensor> items, LayerPrefixMap layers,
                       std::vector<BufferPlace> buffers)
    : items_(std::move(items)), layers_(std::move(layers)), buffers_(std::move(buffers)) {
  Digest digest;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    by_name_.try_emplace(items_[i].name, i);
    digest.add(items_[i].name).add(items_[i].is_buffer);
  }
  for (const auto& [local, global] : layers_) digest.add(local).add(global);
  digest_ = digest.value();
}

const TensorPtr* TensorDict::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &items_[it->second].tensor;
}

Module::Module() {
  static std::atomic<std::uint64_t> last{0};
  id_ = ++last;
}

Result<> Module::check_name(std::string_view name) const {
  if (name.empty() || name.find('.') != std::string_view::npos)
    return invalid(
        fmt::format("'{}' is not a valid member name: it is empty or contains a dot", name));
  if (child(name) != nullptr || find_named(parameters_, name) != parameters_.end() ||
      find_named(buffers_, name) != buffers_.end())
    return invalid(fmt::format("the module already has a member '{}'", name));
  return {};
}

Result<> Module::add_child(std::string name, std::shared_ptr<Module> child) {
  RESHARD_TRY(check_name(name));
  if (child == nullptr) return invalid(fmt::format("child '{}' is null", name));
  children_.push_back({std::move(name), std::move(child)});
  return {};
}

Module& Module::submodule(std::string_view path) {
  Module* at = this;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view name = path.substr(0, dot);
    path.remove_prefix(std::min(dot + 1, path.size()));
    Module* next = at->child(name);
    if (next == nullptr) {
      at->children_.push_back({std::string(name), std::make_shared<Module>()});
      next = at->children_.back().module.get();
    }
    at = next;
  }
  return *at;
}

Result<TensorPtr> Module::register_parameter(std::string name, const TensorView& memory,
                                             ParameterAttributes attributes) {
  RESHARD_TRY(check_memory(name, memory));
  auto tensor = std::make_shared<Tensor>(Tensor{memory, std::move(attributes)});
  RESHARD_TRY(share_parameter(std::move(name), tensor));
  return tensor;
}

Result<> Module::share_parameter(std::string name, TensorPtr tensor) {
  RESHARD_TRY(check_name(name));
  if (tensor == nullptr) return invalid(fmt::format("parameter '{}' is null", name));
  parameters_.push_back({std::move(name), std::move(tensor), false});
  return {};
}

Result<TensorPtr> Module::register_buffer(std::string name, const TensorView& memory,
                                          bool persistent) {
  RESHARD_TRY(check_name(name));
  RESHARD_TRY(check_memory(name, memory));
  buffers_.push_back({std::move(name), std::make_shared<Tensor>(Tensor{memory}), persistent});
  return buffers_.back().tensor;
}

Result<> Module::replace_buffer(std::string_view name, TensorPtr tensor) {
  const auto it = find_named(buffers_, name);
  if (it == buffers_.end() || tensor == nullptr)
    return fail(Code::not_found, fmt::format("the module has no buffer '{}' to replace", name));
  it->tensor = std::move(tensor);
  return {};
}

Module* Module::child(std::string_view name) const {
  const auto it = find_named(children_, name);
  return it == children_.end() ? nullptr : it->module.get();
}

TensorPtr Module::buffer(std::string_view name) const {
  const auto it = find_named(buffers_, name);
  return it == buffers_.end() ? nullptr : it->tensor;
}

std::vector<NamedModule> named_modules(Module& module) {
  std::vector<NamedModule> out;
  std::unordered_set<const Module*> seen;
  walk(module, "", seen, out);
  return out;
}

std::vector<NamedTensor> named_parameters(Module& module) {
  std::vector<NamedTensor> out;
  std::unordered_set<const Tensor*> seen;
  for (const NamedModule& m : named_modules(module))
    for (const NamedTensor& p : m.module->parameters())
      if (seen.insert(p.tensor.get()).second)
        out.push_back({joined(m.name, p.name), p.tensor, false});
  return out;
}

std::vector<NamedBuffer> named_persistent_buffers(Module& module) {
  std::vector<NamedBuffer> out;
  for (const NamedModule& m : named_modules(module))
    for (const Module::Buffer& b : m.module->buffers())
      if (b.persistent) out.push_back({joined(m.name, b.name), m.module, b.name, b.tensor});
  return out;
}

std::vector<NamedTensor> named_refit_tensors(Module& module) {
  std::vector<NamedTensor> out = named_parameters(module);
  for (NamedBuffer& b : named_persistent_buffers(module))
    out.push_back({std::move(b.full_name), std::move(b.tensor), true});
  return out;
}

std::shared_ptr<const TensorDict> get_refit_tensor_dict(Module& module) {
  if (module.is_chunk_list) {
    std::vector<std::shared_ptr<const TensorDict>> now;
    for (const Module::Child& c : module.children())
      now.push_back(get_refit_tensor_dict(*c.module));
    if (now != module.chunk_caches_) module.refit_tensor_cache_ = nullptr;
    module.chunk_caches_ = std::move(now);
  }
  // It knows the addresses of modules, of which only the root can have moved.
  if (module.refit_tensor_cache_ == nullptr || module.cached_at_ != &module) {
    LayerPrefixMap layers = build_layer_module_prefix_map(module);
    std::vector<BufferPlace> buffers = places_of_buffers(module, layers);
    module.refit_tensor_cache_ = std::make_shared<const TensorDict>(
        named_refit_tensors(module), std::move(layers), std::move(buffers));
    module.cached_at_ = &module;
  }
  return module.refit_tensor_cache_;
}

void invalidate_refit_tensor_cache(Module& module) {
  module.refit_tensor_cache_ = nullptr;
  if (!module.is_chunk_list) return;
  for (const Module::Child& c : module.children()) invalidate_refit_tensor_cache(*c.module);
}

Result<Module*> chunk_list(const std::vector<Module*>& chunks) {
  Module& first = *chunks.front();
  for (std::size_t i = 1; i < chunks.size(); ++i) {
    if (std::find(chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(i), chunks[i]) !=
        chunks.begin() + static_cast<std::ptrdiff_t>(i))
      return invalid(fmt::format("chunk {} of a model occurs twice in its list", i));
    if (!same_groups(*first.pg_collection, *chunks[i]->pg_collection))
      return invalid(fmt::format("chunk {} of a model has other process groups than chunk 0", i));
  }
  const auto& known = first.chunk_list_;
  const bool same =
      known != nullptr &&
      std::ranges::equal(known->children(), chunks,
                         [](const auto& child, Module* m) { return child.module.get() == m; }) &&
      known->chunk_ids_ == ids_of(chunks);
  if (!same) {
    first.chunk_list_ = std::make_shared<Module>();
    first.chunk_list_->is_chunk_list = true;
    first.chunk_list_->chunk_ids_ = ids_of(chunks);
    // Borrowed: the chunks outlive every call, and the first chunk owns the list.
    for (std::size_t i = 0; i < chunks.size(); ++i)
      RESHARD_TRY(first.chunk_list_->add_child(
          fmt::format("model{}", i), std::shared_ptr<Module>(std::shared_ptr<void>(), chunks[i])));
  }
  first.chunk_list_->pg_collection = first.pg_collection;
  first.chunk_list_->config = first.config;
  return first.chunk_list_.get();
}

Result<Module*> unwrap_model(Module& module) {
  Module* at = &module;
  while (at->is_wrapper) {
    at = at->child("module");
    if (at == nullptr) return invalid("a wrapper has no child 'module'");
  }
  return at;
}

}  // namespace reshard::megatron
