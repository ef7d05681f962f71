// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/apply_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/identify/copies.h"
#include "reshard/io/identify/opaque.h"
#include "reshard/io/identify/same_content.h"
#include "reshard/io/identify/stacked_experts.h"
#include "reshard/io/identify/stored_scales.h"
#include "reshard/io/identify/tensor_lists.h"
#include "reshard/io/torch_dist/megatron_layout.h"
#include "reshard/model/canonical.h"
#include "reshard/model/names.h"
#include "reshard/model/naming/misfits.h"

namespace reshard::identify {
namespace {

constexpr std::string_view kRouterBias = ".e_score_correction_bias";
constexpr std::string_view kOutputLayer = "output_layer.weight";

/// transformers drops all modules for multi-token prediction but keeps their number in the config.
void forget_missing_mtp(const ModelSpec& stored, ModelConfig& config) {
  if (config.num_mtp == 0) return;
  const HfNames names(config);
  std::vector<std::string> prefixes = {"mtp."};
  if (config.mtp_names == MtpNames::trailing)
    for (Index m = 0; m < config.num_mtp; ++m) prefixes.push_back(names.layer({0, m}, ""));
  for (const CanonicalTensor& t : stored.tensors())
    for (const std::string& prefix : prefixes)
      if (t.name.starts_with(prefix)) return;
  config.num_mtp = 0;
  config.mtp_block.clear();
}

const TensorSpec& stored_tensor(const Model& model, const std::string& name) {
  const auto& tensors = model.weights->pieces().tensors;
  return *std::ranges::find(tensors, name, &TensorSpec::name);
}

/// Whether a leftover is stored under another name, too. Errors: it is another's, and differs.
Result<bool> is_copy(const ModelConfig& config, const torch_dist::Leftover& leftover,
                     const Model& model) {
  std::vector<torch_dist::SecondName> second = leftover.second;
  std::string advice = "--ignore leaves it out";
  if (second.empty() && config.tie_word_embeddings && leftover.name == kOutputLayer) {
    second.push_back({leftover.name, std::string(torch_dist::kEmbedding), {}});
    advice = "tie_word_embeddings is true: set it to false, or leave it out with --ignore";
  }
  for (const auto& [part, whole, at] : second) {
    const bool same = at.size() == 0 ? same_content(*model.weights, part, whole)
                                     : same_as_part(*model.weights, part, whole, at);
    if (same) continue;
    const std::string& original = part == leftover.name ? whole : part;
    return fail(Code::corrupt, fmt::format("{}: '{}' is stored and differs from '{}'; {}",
                                           model.name, leftover.name, original, advice));
  }
  return !second.empty();
}

/// Refuses what the model does not use of a checkpoint of Megatron's, unless it is to be ignored or
/// is there twice.
Result<> judge_leftovers(const ModelConfig& config,
                         const std::vector<torch_dist::Leftover>& leftovers, Model& model) {
  std::vector<std::string_view> misfits;
  for (const torch_dist::Leftover& leftover : leftovers) {
    if (matches_any(model.ignore, leftover.name)) {
      model.left_out.push_back(leftover.name);
    } else if (leftover.unused.size() > 0) {
      return fail(Code::invalid_argument,
                  fmt::format("{}: tensor '{}' of shape {} has more layers or experts than the "
                              "config says: entry {} is not part of its architecture",
                              model.name, leftover.name,
                              to_string(stored_tensor(model, leftover.name).shape),
                              to_string(leftover.unused)));
    } else if (!is_stray_buffer(leftover.name) && !RESHARD_TRY(is_copy(config, leftover, model))) {
      misfits.push_back(leftover.name);
    }
  }
  if (misfits.empty()) return {};
  const TensorSpec& first = stored_tensor(model, std::string(misfits[0]));
  return fail(Code::invalid_argument,
              fmt::format("{}: {}", model.name, not_of_config(misfits, first.shape)));
}

}  // namespace

Result<> apply_config(ModelSpec stored, Model& model) {
  auto config = RESHARD_TRY(read_config(model.config_path));
  const SaidQuantisation said = said_of(model);
  config.quantization = !model.storage->codes && is_left_over(stored, said) ? "" : said.method;
  if (!config.quantization.empty())
    RESHARD_TRY(take_scales(config.quantization, config.dtype, stored, model));
  const std::vector<CanonicalTensor> scales = take_activation_scales(stored);
  config.router_expert_bias |=
      std::any_of(stored.tensors().begin(), stored.tensors().end(),
                  [](const CanonicalTensor& t) { return t.name.ends_with(kRouterBias); });
  detect_prefixes(stored, config);
  config.has_head = stored.find(HfNames(config).lm_head()).has_value();
  forget_missing_mtp(stored, config);
  RESHARD_TRY(take_copies(model, config, stored));
  const ModelSpec wanted = RESHARD_TRY(canonical_tensors(config));
  auto file_form = take_stacked_experts(wanted, config, model, stored);
  if (!file_form) return tl::unexpected(std::move(file_form).error().in(model.name));
  leave_out_strays(wanted, stored, model);
  if (auto same = check_against(stored, wanted); !same) {
    if (same.error().code == Code::corrupt) model.misshapen = same.error().message;
    return tl::unexpected(std::move(same).error().in(model.name));
  }
  ModelSpec ordered = in_order_of(wanted, stored);
  for (const CanonicalTensor& t : scales) {
    const TensorId id = RESHARD_TRY(ordered.add(t.name, t.shape, t.dtype, t.merged));
    if (!file_form->empty()) file_form->push_back({t.name, id});
  }
  model.storage->file_form = *std::move(file_form);
  model.tensors = std::make_shared<ModelSpec>(std::move(ordered));
  model.config = std::move(config);
  return {};
}

Result<> apply_megatron(Model& model) {
  auto config = RESHARD_TRY(read_config(model.config_path));
  const auto has = [&](const auto& matches) {
    return std::ranges::any_of(model.weights->pieces().tensors,
                               [&](const TensorSpec& t) { return matches(t.name); });
  };
  config.router_expert_bias |=
      has([](const std::string& name) { return name.ends_with(".router.expert_bias"); });
  if (!has([](const std::string& name) { return name.starts_with("mtp."); })) {
    config.num_mtp = 0;
    config.mtp_block.clear();
  }
  torch_dist::MegatronCheckpoint found =
      RESHARD_TRY(torch_dist::megatron_checkpoint(*model.weights, config));
  RESHARD_TRY(judge_leftovers(config, found.leftovers, model));
  model.tensors = std::move(found.model);
  model.pieces_layout = std::move(found.layout);
  model.config = std::move(config);
  return {};
}

}  // namespace reshard::identify
