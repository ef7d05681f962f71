// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec models_spec() {
  CommandSpec spec{"models", "[NAME] [--json]",
                   "lists the classes of models that layouts know, and how each was proved"};
  const auto a = std::make_shared<ModelsArguments>();
  OptionList& options = spec.options;
  options.text("NAME", a->name, "", "part of a class's name or of its model_type; default: all");
  options.flag("--json", a->json, "print one JSON object");
  spec.examples = {{"models qwen3", "the classes of Qwen3, and the layouts that know them"}};
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
