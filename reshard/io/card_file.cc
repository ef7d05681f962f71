// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/card_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/io/example_configs.h"
#include "reshard/io/hf/architectures.h"
#include "reshard/io/hf/config_values.h"
#include "reshard/io/rules_file.h"
#include "reshard/model/families/transformers_modules.h"

namespace reshard {

std::string card_framework(const std::string& family) {
  return family == "fsdp" ? "transformers" : family;
}

Result<RuleSet> read_card_of(const std::string& framework, const std::string& name) {
  const auto path = find_card_file(framework, name);
  if (!path)
    return fail(
        Code::not_found,
        fmt::format("there is no card of {} for {}; cards are installed in share/reshard/cards, "
                    "and RESHARD_EXAMPLES may name the folder configs beside them",
                    framework, name));
  RuleSet card = RESHARD_TRY(read_card(*path));
  if (card.card && card.card->framework == framework) return card;
  return fail(Code::corrupt, fmt::format("{}: is no card of {}", *path, framework));
}

Result<std::optional<RuleSet>> find_card(const std::string& family, const Model& model) {
  const std::string framework = card_framework(family);
  if (model.config) {  // of a class that ModelConfig describes
    const auto known =
        std::ranges::find_if(hf::architectures(), [&](const hf::Architecture& known_class) {
          return model.config->architecture == known_class.name ||
                 model.config->architecture == known_class.bare_name;
        });
    if (known == hf::architectures().end()) return std::optional<RuleSet>();
    return std::optional(RESHARD_TRY(read_card_of(framework, std::string(known->name))));
  }
  if (model.config_path.empty()) return std::optional<RuleSet>();
  const ConfigValues config = RESHARD_TRY(hf::read_config_values(model.config_path));
  for (const std::string& said : config.architectures) {
    const std::string architecture(hf::without_fsdp(said));
    // A known class: the reader of its config says why it does not take this one.
    if (std::ranges::find(hf::architectures(), architecture, &hf::Architecture::name) !=
        hf::architectures().end())
      return std::optional<RuleSet>();
    if (!find_card_file(framework, architecture)) continue;
    RuleSet card = RESHARD_TRY(read_card_of(framework, architecture));
    if (std::ranges::find(card.card->model_types, config.model_type) !=
        card.card->model_types.end())
      return std::optional(std::move(card));
    return fail(Code::unsupported,
                fmt::format("no card fits: {} is known with model_type {}, and {} says '{}'",
                            architecture, fmt::join(card.card->model_types, " or "),
                            model.config_path, config.model_type));
  }
  return std::optional<RuleSet>();
}

Result<std::optional<RuleSet>> find_module_card(const LayoutSpec& spec, const Model& model) {
  const bool newest =
      RESHARD_TRY(transformers_release(spec)).value_or(kNewestTransformers) == kNewestTransformers;
  if (!newest || model.config || !model.opaque.empty()) return std::optional<RuleSet>();
  return find_card(spec.family, model);
}

Result<std::vector<KnownClass>> known_classes() {
  std::map<std::string, KnownClass> known;
  for (const hf::Architecture& of : hf::architectures()) {
    KnownClass& found = known[std::string(of.name)];
    found.has_family = true;
    for (const std::string_view type : of.model_types)
      if (!type.empty()) found.model_types.emplace_back(type);
  }
  for (const char* family : {"fsdp", "vllm", "sglang", "megatron"}) {
    const std::string framework = card_framework(family);
    for (const std::string& name : card_names(framework)) {
      RuleSet rules = RESHARD_TRY(read_card_of(framework, name));
      KnownClass& found = known[name];
      for (const std::string& type : rules.card->model_types)
        if (std::ranges::find(found.model_types, type) == found.model_types.end())
          found.model_types.push_back(type);
      found.cards.push_back(std::move(*rules.card));
    }
  }
  std::vector<KnownClass> out;
  for (auto& [name, found] : known) {
    found.name = name;
    out.push_back(std::move(found));
  }
  return out;
}

}  // namespace reshard
