// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/card_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/io/example_configs.h"
#include "reshard/io/hf/architectures.h"
#include "reshard/io/hf/config_values.h"
#include "reshard/io/rules_file.h"

namespace reshard {

Result<std::optional<RuleSet>> find_card(const std::string& framework, const Model& model) {
  if (model.config_path.empty()) return std::optional<RuleSet>();
  const ConfigValues config = RESHARD_TRY(hf::read_config_values(model.config_path));
  for (const std::string& architecture : config.architectures) {
    // A class with a family: the family says why it does not take this config.
    if (std::ranges::find(hf::architectures(), architecture, &hf::Architecture::name) !=
        hf::architectures().end())
      return std::optional<RuleSet>();
    const auto path = find_card_file(framework, architecture);
    if (!path) continue;
    RuleSet card = RESHARD_TRY(read_rules(*path));
    if (!card.card || card.card->framework != framework)
      return fail(Code::corrupt, fmt::format("{}: is no card of {}", *path, framework));
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

}  // namespace reshard
