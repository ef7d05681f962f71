// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec plan_spec() {
  CommandSpec spec{"plan", "--model M --from L --to L [OPTIONS]",
                   "shows what a refit would move; reads no weights, works for thousands of ranks"};
  const auto a = std::make_shared<PlanArguments>();
  OptionList& options = spec.options;
  add_what_moves(options, *a);
  options.number<Index>("--rank", a->rank, 0, kMaxRank, "plan this rank alone");
  options
      .value("--transfers", "N", "list the rank's first N transfers, or all",
             [a](const std::string& text) -> Result<> {
               a->transfers =
                   text == "all"
                       ? -1
                       : RESHARD_TRY(OptionList::parse_number<Index>(text, 0, Index{1} << 40));
               return {};
             })
      .needs("--rank");
  options.text("--cluster", a->cluster, "C",
               "predict how long the refit takes on a cluster: a file, or a named example such as "
               "dgx-h100-400g");
  options.flag("--json", a->json, "print one JSON object");
  options.flag("--dot", a->dot, "print a Graphviz graph of the ranks and the bytes between them")
      .excludes("--json")
      .excludes("--rank")
      .excludes("--cluster");
  options.threads(a->threads);
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
