// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/trainer_state.h"

#include <algorithm>
#include <array>

namespace reshard::identify {
namespace {

// No tensor of a model that reshard knows has one of these parts in its name.
constexpr std::array<std::string_view, 38> kParts = {
    // optimizers, as torchtitan, accelerate, Lightning, Composer and Megatron name them
    "optim", "optims", "optimizer", "optimizers", "optim_state", "optim_states", "optimizer_state",
    "optimizer_states", "optim_state_dict", "optimizer_state_dict", "opt_state", "lr_scheduler",
    "lr_schedulers", "opt_param_scheduler",
    // what torch's optimizers keep for each parameter
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg",
    "acc_delta", "grad_avg", "param_groups",
    // gradients
    "grad", "grads", "gradient", "gradients", "main_grad",
    // the trainer
    "rng", "rng_state", "rng_states", "random_state", "train_state", "trainer_state", "dataloader",
    "grad_scaler", "loss_scaler", "extra_state"};

/// "optimizer_0" -> "optimizer"
std::string_view without_number(std::string_view part) {
  const std::size_t end = part.find_last_not_of("0123456789");
  if (end == std::string_view::npos || end + 1 == part.size()) return part;
  part = part.substr(0, end + 1);
  return part.ends_with('_') ? part.substr(0, part.size() - 1) : part;
}

bool is_state(std::string_view part) {
  // Megatron adds the place of a shard: "_extra_state/shard_0_4".
  if (part.starts_with("_extra_state")) return true;
  part = without_number(part);
  return std::ranges::find(kParts, part) != kParts.end();
}

}  // namespace

bool is_trainer_state(std::string_view name) {
  while (!name.empty()) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    if (is_state(name.substr(0, dot))) return true;
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return false;
}

}  // namespace reshard::identify
