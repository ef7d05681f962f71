// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec synth_spec() {
  CommandSpec spec{"synth", "CONFIG OUT [OPTIONS]",
                   "writes a valid checkpoint of a config's structure with synthetic values"};
  const auto a = std::make_shared<SynthArguments>();
  OptionList& options = spec.options;
  SynthesizeOptions& o = a->options;
  options.text("CONFIG", o.config, "", "config.json or named example").required();
  options.text("OUT", o.output, "", "folder to write; must not exist").required();
  options.number<Index>("--layers", o.layers, 1, kMaxLayers,
                        "replace the config's number of layers");
  options.number<std::uint64_t>("--seed", o.seed, 0, ~std::uint64_t{0},
                                "seed of the values; default 0");
  options.bytes("--max-shard-bytes", o.max_shard_bytes,
                "maximum tensor bytes per file; default 5GB");
  options.flag("--json", a->json, "print one JSON object");
  options.threads(o.threads);
  spec.examples = {{"synth demo-moe moe --layers 2", "a small checkpoint to try commands on"}};
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
