// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec inspect_spec() {
  CommandSpec spec{"inspect", "M [OPTIONS]",
                   "shows a model's tensors and what each rank of a layout holds"};
  const auto a = std::make_shared<InspectArguments>();
  OptionList& options = spec.options;
  options.text("M", a->model, "", "config.json, checkpoint or named example").required();
  options.layouts("--layout", a->layouts,
                  "explain this layout; may be repeated; default: the checkpoint's own");
  options.number<Index>("--rank", a->rank, 0, kMaxRank, "list this rank's local tensors");
  options.number<Index>("--layers", a->layers, 1, kMaxLayers,
                        "replace the config's number of layers");
  options.patterns(
      "--ignore", a->ignore, 1,
      "tensors that M has besides those of its config; * matches any text, # a number");
  options.prefix(a->prefix);
  options.flag("--json", a->json, "print one JSON object");
  spec.examples = {
      {"inspect deepseek-v3", "the tensors of a published shape"},
      {"inspect hf --layout megatron:tp=2 --layout vllm:tp=2",
       "what two layouts do to each kind of tensor of a checkpoint"},
      {"inspect qwen3-4b --layout vllm:tp=4 --rank 1", "the local tensors of rank 1 of an engine"}};
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
