// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec transports_spec() {
  CommandSpec spec{"transports", "[--json]",
                   "lists the transports and which of them this build has"};
  const auto a = std::make_shared<TransportsArguments>();
  OptionList& options = spec.options;
  options.flag("--json", a->json, "print one JSON object");
  spec.examples = {{"transports", "which transports can run here, and why the others cannot"}};
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
