// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec completion_spec() {
  CommandSpec spec{"completion", "SHELL",
                   "prints a script that makes a shell complete commands, options and values"};
  const auto a = std::make_shared<CompletionArguments>();
  using Shell = CompletionArguments::Shell;
  spec.options
      .choice<Shell>("SHELL", a->shell,
                     {{"bash", Shell::bash}, {"zsh", Shell::zsh}, {"fish", Shell::fish}},
                     "bash, zsh or fish")
      .required();
  spec.examples = {{"completion bash", "for this bash: source <(reshard completion bash)"},
                   {"completion zsh", "goes into the file _reshard of a folder in fpath"},
                   {"completion fish", "goes into ~/.config/fish/completions/reshard.fish"}};
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
