// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion/scripts.h"
#include "cli/json_report.h"

namespace reshard::cli::completion {
namespace {

/// The text in single quotes of fish, in which a backslash stands before quotes and backslashes.
std::string text_of(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

/// The options of `complete` for the value; "" for a flag.
std::string value(const Option& option) {
  if (option.is_flag()) return "";
  if (!option.words.empty())
    return fmt::format(" -{} -a {}", option.implied.empty() ? "x" : "f",
                       text_of(fmt::format("{}", fmt::join(option.words, " "))));
  return option.takes_files() ? " -r -F" : " -x";
}

std::string option_text(const CommandSpec& command, const Option& option) {
  const std::string start =
      fmt::format("complete -c reshard -n '__fish_seen_subcommand_from {}'", command.name);
  const std::string help = " -d " + text_of(option.help);
  if (!option.is_positional())
    return fmt::format("{}{} -l {}{}{}\n", start,
                       option.brief.empty() ? "" : " -s " + option.brief.substr(1),
                       option.name.substr(2), value(option), help);
  if (option.takes_files()) return start + " -F\n";
  if (option.words.empty()) return "";
  return fmt::format("{} -a {}{}\n", start,
                     text_of(fmt::format("{}", fmt::join(option.words, " "))), help);
}

}  // namespace

std::string fish_script(std::span<const CommandSpec> commands) {
  std::string out = fmt::format(
      "# Completion of reshard {} for fish, made by: reshard completion fish\n"
      "complete -c reshard -f\n"
      "complete -c reshard -s h -l help -d 'print this and exit'\n"
      "complete -c reshard -n __fish_use_subcommand -l version"
      " -d 'print the version and exit'\n",
      version_text());
  for (const CommandSpec& command : commands)
    out += fmt::format("complete -c reshard -n __fish_use_subcommand -a {} -d {}\n", command.name,
                       text_of(command.description));
  for (const CommandSpec& command : commands)
    for (const Option& option : command.options.all()) out += option_text(command, option);
  return out;
}

}  // namespace reshard::cli::completion
