// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec convert_spec() {
  CommandSpec spec{"convert", "IN OUT [--from L] --to L [OPTIONS]",
                   "converts a checkpoint to another layout; streams, resumes after a crash"};
  const auto a = std::make_shared<ConvertArguments>();
  OptionList& options = spec.options;
  ConvertOptions& o = a->options;
  options.text("IN", o.input, "", "folder or file of the checkpoint").required();
  options.text("OUT", o.output, "", "folder to write; must not exist").required();
  options.layout("--from", o.from, "layout of IN; default: its own");
  options.layout("--to", o.to, "layout of OUT").required();
  options.bytes("--buffer-bytes", o.buffer_bytes, "memory for data in flight; default 64MiB");
  options.bytes("--max-shard-bytes", o.max_shard_bytes,
                "maximum tensor bytes per file, for layout hf; default 5GB");
  options.patterns(
      "--ignore", o.ignore, 1,
      "tensors that OUT's layout may lack, or that IN has besides those of its config; "
      "* matches any text, # a number");
  options.prefix(o.prefix);
  options.merge(o.merge, "IN");
  options.flag("--sync", o.sync, "wait until all data of OUT is on disk");
  options.flag("--json", a->json, "print one JSON object");
  options.threads(o.threads);
  spec.examples = {
      {"convert hf engine --to vllm:tp=4",
       "a checkpoint of Hugging Face becomes one file for each rank of an engine"},
      {"convert ranks back --to hf", "and back: the layout of ranks is stored beside it"},
      {"convert hf fp8 --to hf:quant=fp8_channel", "quantises on the way"}};
  spec.command = [a] { return *a; };
  return spec;
}

}  // namespace reshard::cli
