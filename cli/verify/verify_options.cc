// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec verify_spec() {
  CommandSpec spec{"verify", "A B [OPTIONS]",
                   "compares the values of two checkpoints in any layouts"};
  const auto a = std::make_shared<VerifyArguments>();
  OptionList& options = spec.options;
  VerifyOptions& o = a->options;
  options.text("A", o.a, "", "a checkpoint").required();
  options.text("B", o.b, "", "another checkpoint").required();
  options.patterns("--ignore", o.ignore, 1,
                   "tensors not to compare; * matches any text, # a number");
  options.prefix(o.prefix);
  options.merge(o.merge, "A");
  options.flag("--json", a->json, "print one JSON object");
  options.threads(o.threads);
  spec.examples = {
      {"verify hf ranks",
       "compares the values of a checkpoint with those of the ranks' files that were made of it"}};
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
