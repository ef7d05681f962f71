// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/stacked_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace reshard::identify {
namespace {

/// True if the files hold this tensor of the modules, and not those of the checkpoint that it is.
bool is_held(const ModuleTensor& t, const ModelSpec& wanted, const ModelSpec& stored) {
  return t.name != wanted[t.tensor].name && stored.find(t.name) &&
         !stored.find(wanted[t.tensor].name);
}

Result<> check_held(const ModuleTensor& t, const ModelSpec& wanted, const ModelSpec& stored,
                    const Model& model) {
  const Dims want = t.stored_shape(wanted), have = stored[*stored.find(t.name)].stored_shape();
  if (model.stored && model.stored->tensors.contains(t.name))
    return fail(Code::unsupported,
                fmt::format("tensor '{}' holds the quantised weights of all experts of a layer; "
                            "quantised experts are read one by one only",
                            t.name));
  if (have != want)
    return fail(Code::corrupt, fmt::format("tensor '{}' has shape {} but the config says {}",
                                           t.name, to_string(have), to_string(want)));
  return {};
}

/// The canonical tensors in a tensor of the modules, in the order of their names in `wanted`.
std::vector<TensorId> tensors_in(const ModuleTensor& t) {
  if (!t.stack) return {t.tensor};
  std::vector<TensorId> ids;
  for (const PlacedBox& part : t.stack->parts) ids.push_back(part.tensor);
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

Result<std::vector<ModuleTensor>> take_stacked_experts(const ModelSpec& wanted,
                                                       const ModelConfig& config,
                                                       const Model& model, ModelSpec& stored) {
  std::vector<ModuleTensor> form;
  std::map<std::string, std::vector<TensorId>> held;  // by the name in the files
  const auto modules = transformers_modules(wanted, &config, kNewestTransformers);
  for (const ModuleTensor& t : modules) {
    if (is_held(t, wanted, stored)) {
      RESHARD_TRY(check_held(t, wanted, stored, model));
      held.emplace(t.name, tensors_in(t));
      form.push_back(t);
      continue;
    }
    for (const TensorId id : tensors_in(t)) {
      const std::string &name = wanted[id].name, other = module_name(config, name);
      const bool renamed = other != name && stored.find(other) && !stored.find(name);
      if (renamed) held.emplace(other, std::vector{id});
      form.push_back({renamed ? other : name, id});
    }
  }
  if (held.empty()) return std::vector<ModuleTensor>();
  ModelSpec single;
  for (const CanonicalTensor& t : stored.tensors()) {
    const auto found = held.find(t.name);
    if (found == held.end()) {
      RESHARD_TRY(single.add(t.name, t.shape, t.dtype, t.merged));
      continue;
    }
    for (const TensorId id : found->second)
      RESHARD_TRY(single.add(wanted[id].name, wanted[id].stored_shape(), t.dtype));
  }
  stored = std::move(single);
  return form;
}

}  // namespace reshard::identify
