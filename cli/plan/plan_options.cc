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
  options.routes(a->routes);
  options.flag("--json", a->json, "print one JSON object");
  options.flag("--dot", a->dot, "print a Graphviz graph of the ranks and the bytes between them")
      .excludes("--json")
      .excludes("--rank")
      .excludes("--cluster");
  options.threads(a->threads);
  spec.examples = {
      {"plan --model qwen3-30b-a3b --from megatron:tp=4,pp=2,ep=8,etp=1 --to vllm:tp=8,offset=16",
       "what a refit from 16 ranks of a trainer to 8 of an engine moves"},
      {"plan --model llama-3.1-70b --from fsdp:shard=64 --to vllm:tp=8,offset=64 --cluster "
       "dgx-h100-400g",
       "how long it takes on a cluster, and what bounds it"},
      {"plan --model qwen3-235b-a22b --from megatron:tp=4,pp=2,ep=8,etp=1 --to vllm:tp=8,offset=16 "
       "--rank 3 --transfers 10",
       "the first transfers of rank 3"}};
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
