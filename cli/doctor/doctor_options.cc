// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec doctor_spec() {
  CommandSpec spec{"doctor", "[OPTIONS]",
                   "says what this machine can do, what stands in the way, and how to change it"};
  const auto a = std::make_shared<DoctorArguments>();
  spec.options.flag("--environment", a->environment,
                    "list the environment variables that reshard reads, and those set here");
  spec.options.flag("--json", a->json, "print one JSON object");
  spec.examples = {
      {"doctor", "one screen, with a remedy for each problem"},
      {"doctor --environment", "all environment variables, with those that are set here marked"}};
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
