// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/adapters/peft.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "reshard/io/hf/config_fields.h"

namespace reshard::identify {
namespace {

/// Options of forms that are more than A and B, if they are set.
constexpr std::array<std::string_view, 13> kOtherForms = {"use_dora",
                                                          "lora_bias",
                                                          "use_qalora",
                                                          "use_bdlora",
                                                          "alora_invocation_tokens",
                                                          "arrow_config",
                                                          "kasa_config",
                                                          "velora_config",
                                                          "monteclora_config",
                                                          "target_parameters",
                                                          "layer_replication",
                                                          "trainable_token_indices",
                                                          "megatron_config"};
/// Initialisations that leave the base weights as they are.
constexpr std::array<std::string_view, 5> kPlainStarts = {"Gaussian", "gaussian", "eva",
                                                          "orthogonal", "mica"};

/// False for null, false, 0 and what is empty, as in Python.
bool is_set(const Json& value) {
  if (value.is_null()) return false;
  if (const bool* flag = value.boolean()) return *flag;
  if (const auto* text = value.string()) return !text->empty();
  if (const auto* list = value.array()) return !list->empty();
  if (const auto* object = value.object()) return !object->empty();
  return value.number() != 0;
}

Result<> check_form(const hf::ConfigFields& fields, const Json& json) {
  const auto type = RESHARD_TRY(fields.text("peft_type")).value_or("LORA");
  if (type != "LORA")
    return fields.unsupported(fmt::format("peft_type '{}'; only LORA is understood", type));
  for (const std::string_view name : kOtherForms)
    if (const Json* value = json.find(name); value != nullptr && is_set(*value))
      return fields.unsupported(fmt::format(
          "{} changes weights in another way than by A and B; merge it with PEFT", name));
  const Json* const start = json.find("init_lora_weights");
  const std::string* const said = start == nullptr ? nullptr : start->string();
  if (said != nullptr && std::ranges::find(kPlainStarts, *said) == kPlainStarts.end())
    return fields.unsupported(fmt::format(
        "init_lora_weights '{}' has changed the base weights, which the checkpoint "
        "does not show; convert it with PEFT (path_initial_model_for_weight_conversion)",
        *said));
  return {};
}

bool is_understood(std::string_view pattern) {
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '^' && i == 0) continue;
    if (c == '\\' && i + 1 < pattern.size() && pattern[i + 1] == '.') {
      ++i;
      continue;
    }
    if (std::string_view("\\^$*+?()[]{}|").find(c) != std::string_view::npos) return false;
  }
  return !pattern.empty();
}

/// Python's re.match(rf"(.*\.)?({pattern})$", name). @pre is_understood(pattern)
bool matches(std::string_view pattern, std::string_view name) {
  const bool whole = pattern.starts_with('^');
  if (whole) pattern.remove_prefix(1);
  std::size_t n = name.size();
  for (std::size_t p = pattern.size(); p > 0; --p, --n) {
    if (n == 0) return false;
    const bool escaped = p > 1 && pattern[p - 2] == '\\';
    const bool any = pattern[p - 1] == '.' && !escaped;
    if (!any && pattern[p - 1] != name[n - 1]) return false;
    if (escaped) --p;
  }
  return n == 0 || (!whole && name[n - 1] == '.');
}

Result<double> finite(const hf::ConfigFields& fields, std::string_view key) {
  const auto value = RESHARD_TRY(fields.number(key));
  if (!value) return fields.wrong(fmt::format("{} is missing", key));
  return *value;
}

}  // namespace

double PeftConfig::scale(std::string_view module, Index rank) const {
  double numerator = alpha;
  for (const auto& [pattern, value] : alpha_patterns)
    if (matches(pattern, module)) {
      numerator = value;
      break;
    }
  const auto r = static_cast<double>(rank);
  return numerator / (rank_stabilised ? std::sqrt(r) : r);
}

Result<PeftConfig> parse_peft_config(std::string_view text, std::string_view source) {
  const auto fields = RESHARD_TRY(hf::ConfigFields::parse(text, source));
  const Json json = hf::ConfigFields(fields).take();
  RESHARD_TRY(check_form(fields, json));
  PeftConfig config;
  config.alpha = RESHARD_TRY(finite(fields, "lora_alpha"));
  config.rank_stabilised = RESHARD_TRY(fields.boolean("use_rslora", false));
  config.fan_in_fan_out = RESHARD_TRY(fields.boolean("fan_in_fan_out", false));
  const auto patterns = RESHARD_TRY(fields.object("alpha_pattern"));
  if (!patterns) return config;
  for (const std::string& pattern : patterns->keys()) {
    if (!is_understood(pattern))
      return fields.unsupported(
          fmt::format("alpha_pattern '{}': only names of modules are understood", pattern));
    config.alpha_patterns.emplace_back(pattern, RESHARD_TRY(finite(*patterns, pattern)));
  }
  return config;
}

}  // namespace reshard::identify
