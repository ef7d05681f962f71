// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {
namespace {

using Operation = DeltaArguments::Operation;

Result<> check(const DeltaArguments& a, const std::set<std::string>& given) {
  const std::size_t paths = a.paths.size();
  switch (a.operation) {
    case Operation::make:
      if (paths != 3) return refuse("PATH", "make takes three: BASE NEW OUT");
      return {};
    case Operation::apply:
      if (paths < 3) return refuse("PATH", "apply takes at least three: BASE DELTA... OUT");
      break;
    case Operation::inspect:
      if (paths != 1) return refuse("PATH", "inspect takes one: DELTA");
      for (const char* option : {"--sync", "--threads"})
        if (given.contains(option)) return refuse(option, "inspect writes nothing");
      break;
  }
  if (given.contains("--after")) return refuse("--after", "only make begins where a delta ends");
  return {};
}

}  // namespace

CommandSpec delta_spec() {
  CommandSpec spec{"delta", "make BASE NEW OUT | apply BASE DELTA... OUT | inspect DELTA [OPTIONS]",
                   "writes and applies the changes between versions of a checkpoint"};
  const auto a = std::make_shared<DeltaArguments>();
  OptionList& options = spec.options;
  options
      .choice<Operation>(
          "OPERATION", a->operation,
          {{"make", Operation::make}, {"apply", Operation::apply}, {"inspect", Operation::inspect}},
          "make: write OUT, the delta that makes the checkpoint NEW of BASE; apply: "
          "write OUT, the checkpoint that the deltas make of BASE; inspect: print "
          "what a delta contains")
      .required();
  Option& paths = options.value(
      "PATH", "",
      "checkpoints, all folders or all files, and deltas; OUT must not "
      "exist",
      [a](const std::string& s) -> Result<> { return a->paths.push_back(s), Result<>(); });
  paths.required().repeats = -1;
  options.text("--after", a->after, "FILE",
               "make: the delta that ends at BASE, whose chain this one continues; default: BASE "
               "is the anchor of a new chain");
  options.flag("--sync", a->sync, "wait until all data of OUT is on disk");
  options.flag("--json", a->json, "print one JSON object");
  options.threads(a->threads);
  spec.examples = {
      {"delta make hf trained delta-1", "writes what changed from the checkpoint hf to trained"},
      {"delta make trained trained-2 delta-2 --after step-1",
       "continues the chain that step-1 ended at trained"},
      {"delta apply hf step-1 step-2 restored",
       "makes the last checkpoint of the first, in one pass, and checks every part of both"},
      {"delta inspect step-1", "prints what changed, and how many bytes that takes"}};
  spec.command = [a] { return *a; };
  spec.check = [a](const std::set<std::string>& given) { return check(*a, given); };
  return spec;
}

}  // namespace reshard::cli
