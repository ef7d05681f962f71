// SPDX-License-Identifier: Apache-2.0
#include "cli/command_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "cli/exit_code.h"
#include "reshard/base/closest_name.h"
#include "reshard/base/log/log.h"
#include "reshard/base/number_text.h"
#include "reshard/io/layout_side.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/name_pattern.h"

namespace reshard::cli {
namespace {

constexpr int kMaxThreads = 1024;

/// "vllm:", "hf": the starts of layouts' notations.
std::vector<std::string> layout_starts() {
  std::vector<std::string> out;
  for (const std::string_view family : layout_families())
    out.push_back(std::string(family) + (family == "hf" ? "" : ":"));
  return out;
}

}  // namespace

Result<> refuse(const std::string& option, const std::string& why) {
  return fail(Code::invalid_argument, fmt::format("{}: {}", option, why));
}

Option& OptionList::value(std::string name, std::string type, std::string help,
                          std::function<Result<>(const std::string&)> set) {
  Option option{.name = std::move(name),
                .type = std::move(type),
                .help = std::move(help),
                .set = std::move(set)};
  return options_.emplace_back(std::move(option));
}

Option& OptionList::flag(std::string name, bool& to, std::string help) {
  Option& option = value(std::move(name), "", std::move(help), {});
  option.raise = [&to] { to = true; };
  return option;
}

Option& OptionList::text(std::string name, std::string& to, std::string type, std::string help) {
  return value(std::move(name), std::move(type), std::move(help),
               [&to](const std::string& s) -> Result<> { return to = s, Result<>(); });
}

Option& OptionList::prefix(std::optional<std::string>& to) {
  return value("--prefix", "TEXT",
               "of a torch.distributed.checkpoint, take the tensors whose names begin so, without "
               "it; default: what precedes the config's names",
               [&to](const std::string& s) -> Result<> { return to = s, Result<>(); });
}

Option& OptionList::merge(std::vector<std::string>& to, const std::string& checkpoint) {
  Option& option =
      value("--merge", "FOLDER",
            "merge the LoRA adapter that PEFT wrote there into the weights of " + checkpoint,
            [&to](const std::string& s) -> Result<> { return to.push_back(s), Result<>(); });
  option.repeats = 1;
  return option;
}

Option& OptionList::bytes(std::string name, Index& to, std::string help) {
  return value(std::move(name), "BYTES", std::move(help), [&to](const std::string& s) -> Result<> {
    to = RESHARD_TRY(parse_bytes(s));
    return {};
  });
}

Option& OptionList::layout(std::string name, std::string& to, std::string help) {
  return value(std::move(name), "L", std::move(help),
               [&to](const std::string& s) -> Result<> {
                 for (const std::string& one : split_joined(s)) RESHARD_TRY(read_layout_text(one));
                 to = s;
                 return {};
               })
      .among(layout_starts());
}

Option& OptionList::layouts(std::string name, std::vector<std::string>& to, std::string help) {
  Option& option =
      value(std::move(name), "L", std::move(help), [&to](const std::string& s) -> Result<> {
        for (const std::string& one : split_joined(s)) RESHARD_TRY(read_layout_text(one));
        to.push_back(s);
        return {};
      });
  option.repeats = 1;
  return option.among(layout_starts());
}

Option& OptionList::threads(int& to) {
  return number<int>("--threads", to, 1, kMaxThreads, "number of threads; default: one per core");
}

Option& OptionList::routes(RouteMode& to) {
  return choice<RouteMode>(
             "--routes", to, {{"direct", RouteMode::direct}, {"auto", RouteMode::automatic}},
             "direct: sources send to every rank; auto: ranks on different hosts also "
             "relay what they receive, where the busiest network interface then carries "
             "less; default direct")
      .needs("--cluster");
}

Option& OptionList::patterns(std::string name, std::set<std::string>& to, int repeats,
                             std::string help) {
  Option& option =
      value(std::move(name), "PATTERN", std::move(help), [&to](const std::string& s) -> Result<> {
        RESHARD_TRY(check_tensor_name(s));
        to.insert(s);
        return {};
      });
  option.repeats = repeats;
  return option;
}

tl::unexpected<Error> OptionList::not_a_number(const std::string& text, const std::string& least,
                                               const std::string& most) {
  return tl::unexpected(
      Error{Code::invalid_argument,
            fmt::format("'{}' must be a whole number from {} to {}", text, least, most)});
}

void OptionList::log_level() {
  const auto add = [&](const char* brief, const char* name, LogLevel level,
                       const char* help) -> Option& {
    Option& option = value(name, "", help, {});
    option.brief = brief;
    option.raise = [level] {
      ::setenv("RESHARD_LOG", std::string(reshard::name(level)).c_str(), 1);
      set_log_level(level);
    };
    return option;
  };
  add("-q", "--quiet", LogLevel::error, "log errors only");
  add("-v", "--verbose", LogLevel::info, "log what happens, on standard error; see RESHARD_LOG")
      .excludes("--quiet");
}

std::vector<CommandSpec> command_specs() {
  std::vector<CommandSpec> specs = {
      plan_spec(),   explain_spec(),    run_spec(),   convert_spec(),    verify_spec(),
      delta_spec(),  inspect_spec(),    synth_spec(), transports_spec(), models_spec(),
      doctor_spec(), completion_spec(), man_spec()};
  for (CommandSpec& spec : specs) spec.options.log_level();
  return specs;
}

bool Option::takes_files() const {
  constexpr std::array kTypes = {"M",   "C", "FILE", "FOLDER", "IN",
                                 "OUT", "A", "B",    "CONFIG", "PATH"};
  return words.empty() && std::ranges::find(kTypes, is_positional() ? name : type) != kTypes.end();
}

std::string_view program_summary() {
  return "reshard moves the weights of a model from one parallel layout to another.";
}

std::string_view program_notation() {
  return "M is a config.json, a checkpoint's folder or file, or a named example such as "
         "llama-3.1-8b.\n"
         "L is a layout: hf, megatron:tp=4,pp=2,ep=8,etp=1,dp=2, vllm:tp=8,dp=4,ep=8, "
         "sglang:tp=8,ep=8,\n"
         "fsdp:shard=64, dtensor:FILE, rules:FILE or explicit:FILE; offset=64 starts it at rank "
         "64.";
}

std::span<const ExitCode> exit_codes() {
  static constexpr ExitCode kCodes[] = {{kDone, "done"},
                                        {kFailed, "failed or found different"},
                                        {kWrongUse, "wrong use"},
                                        {kInterrupted, "interrupted"}};
  return kCodes;
}

Result<> OptionList::not_one_of(const std::string& text, const std::vector<std::string>& words) {
  std::string known;
  for (std::size_t i = 0; i < words.size(); ++i)
    known += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return fail(Code::invalid_argument,
              fmt::format("'{}' must be {}{}", text, known, did_you_mean(text, words)));
}

}  // namespace reshard::cli
