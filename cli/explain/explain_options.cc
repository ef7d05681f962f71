// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "cli/command_spec.h"

namespace reshard::cli {
namespace {

/// The least staging memory, in bytes, with which a program can be executed.
constexpr Index kLeastStaging = Index{32} << 10;

void add_how(OptionList& options, ExplainArguments& a) {
  using Path = ExplainArguments::Reach;
  options.choice<Path>("--path", a.reach,
                       {{"direct", Path::direct},
                        {"get", Path::get},
                        {"message", Path::message},
                        {"process", Path::process}},
                       "direct: ranks map each other's memory; get: they read it by the transport; "
                       "message: they send messages; process: all ranks are in one; default "
                       "direct");
  options
      .text("--cluster", a.cluster, "C",
            "ranks reach each other's memory as on a cluster: a file, or a named example")
      .excludes("--path");
  options.routes(a.routes);
  options.bytes("--staging-bytes", a.staging_bytes,
                "memory of the rank for messages and conversions; default 64MiB");
  options.choice<ConversionSide>(
      "--convert", a.convert,
      {{"receiver", ConversionSide::receiver}, {"sender", ConversionSide::sender}},
      "the side that quantises and dequantises: receiver, or sender where it can; default "
      "receiver");
}

Result<> check_options(const ExplainArguments& a, const std::set<std::string>& given) {
  if (given.contains("--program")) {
    const std::set<std::string> fit = {"--program", "--steps", "--json", "--quiet", "--verbose"};
    for (const std::string& name : given)
      if (!fit.contains(name))
        return refuse(name, "a program that --program reads is compiled already; leave one out");
    return {};
  }
  for (const char* name : {"--model", "--from", "--to", "--rank"})
    if (!given.contains(name))
      return fail(Code::invalid_argument, std::string(name) + " is required");
  if (a.staging_bytes < kLeastStaging) return refuse("--staging-bytes", "must be at least 32KiB");
  return {};
}

}  // namespace

CommandSpec explain_spec() {
  CommandSpec spec{"explain", "--model M --from L --to L --rank R [OPTIONS]",
                   "shows what one rank does in a refit, step by step; needs no weights"};
  const auto a = std::make_shared<ExplainArguments>();
  OptionList& options = spec.options;
  options.text("--model", a->model, "M", "config.json, checkpoint or named example");
  options.layout("--from", a->from, "layout of the source");
  options.layout("--to", a->to, "layout of the target");
  options.number<Index>("--rank", a->rank, 0, kMaxRank, "the rank");
  options.number<Index>("--layers", a->layers, 1, kMaxLayers,
                        "replace the config's number of layers");
  options.patterns("--ignore", a->ignore, -1,
                   "tensors that one side may lack, or that M has besides those of its config; * "
                   "matches any text, # a number");
  options.patterns("--only", a->only, -1,
                   "the tensors to move; others stay as they are; default: all");
  options.prefix(a->prefix);
  add_how(options, *a);
  options.value("--steps", "N", "list the first N steps of each program, or all",
                [a](const std::string& text) -> Result<> {
                  a->steps =
                      text == "all"
                          ? -1
                          : RESHARD_TRY(OptionList::parse_number<Index>(text, 0, Index{1} << 40));
                  return {};
                });
  options.text("--out", a->out, "FILE",
               "write the serialised program; if there are several: FILE.0, FILE.1, ...");
  options.text("--program", a->program, "FILE", "print this serialised program instead");
  options.flag("--json", a->json, "print one JSON object");
  spec.examples = {
      {"explain --model qwen3-4b --from fsdp:shard=4 --to vllm:tp=2,offset=4 --rank 5 --steps 20",
       "the first steps of rank 5 of a refit"},
      {"explain --model qwen3-4b --from fsdp:shard=4 --to vllm:tp=2,quant=fp8_channel --rank 0 "
       "--path message",
       "the same by messages, to a target that is quantised on the way"}};
  spec.command = [a] { return *a; };
  spec.check = [a](const std::set<std::string>& given) { return check_options(*a, given); };
  return spec;
}

}  // namespace reshard::cli
