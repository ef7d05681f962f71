// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"
#include "cli/completion/scripts.h"
#include "cli/exit_code.h"
#include "cli/measure.h"

namespace reshard::cli {

Result<int> execute(const CompletionArguments& a) {
  using Shell = CompletionArguments::Shell;
  const auto specs = command_specs();
  print(a.shell == Shell::bash  ? completion::bash_script(specs)
        : a.shell == Shell::zsh ? completion::zsh_script(specs)
                                : completion::fish_script(specs));
  return kDone;
}

}  // namespace reshard::cli
