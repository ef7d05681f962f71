// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/completion/scripts.h"
#include "cli/json_report.h"

namespace reshard::cli::completion {
namespace {

constexpr std::string_view kZshStart = R"(
_reshard_layout() {
  if compset -P '(dtensor|rules|explicit):'; then
    _files
  else
    compadd -S '' -- $@
    compadd -- hf
  fi
}

_reshard() {
  local context state line
  typeset -A opt_args
  _arguments -C \
    '(- *)'{-h,--help}'[print this and exit]' \
    '(- *)--version[print the version and exit]' \
    '1: :->command' \
    '*:: :->arguments'
  case $state in
    command)
      local -a commands=(
)";

/// The text with a backslash before each of the marks.
std::string escaped(std::string_view text, std::string_view marks) {
  std::string out;
  for (const char c : text) {
    if (marks.find(c) != marks.npos) out += '\\';
    out += c;
  }
  return out;
}

bool is_layout(const Option& option) {
  return !option.words.empty() && option.words.front() == "hf";
}

/// The action of _arguments for the value: what follows its last colon.
std::string action(const Option& option) {
  if (option.takes_files()) return "_files";
  if (option.words.empty()) return " ";
  std::string words;
  for (const std::string& word : option.words)
    if (!is_layout(option) || word != "hf") words += " " + escaped(word, ":");
  return is_layout(option) ? "_reshard_layout" + words : "(" + words.substr(1) + ")";
}

/// The specification of an option or a positional argument.
std::string argument(const Option& option) {
  if (option.is_positional())
    return fmt::format("{}{}:{}",
                       option.repeats < 0   ? "*:"
                       : option.is_required ? ":"
                                            : "::",
                       option.name, action(option));
  const std::string help = fmt::format("[{}]", escaped(option.help, "[]\\"));
  const std::string many = option.repeats == 0 ? "" : "*";
  if (option.is_flag()) return option.name + help;
  // --verify takes a value behind = only.
  const bool is_optional = !option.implied.empty();
  const std::string type = is_optional ? "HOW" : option.type;
  return fmt::format("{}{}={}{}:{}:{}", many, option.name, is_optional ? "-" : "", help, type,
                     action(option));
}

/// "'-q[log errors only]' ": the specification of the short name, before that of the long one.
std::string short_name(const Option& option) {
  if (option.brief.empty()) return "";
  return quoted(option.brief + argument(option).substr(option.name.size())) + " ";
}

std::string zsh_command(const CommandSpec& command) {
  std::string out = fmt::format(
      "        {})\n          _arguments \\\n            '(- *)'{{-h,--help}}'[print this and "
      "exit]'",
      command.name);
  for (const Option& option : command.options.all())
    out += " \\\n            " + short_name(option) + quoted(argument(option));
  return out + "\n          ;;\n";
}

}  // namespace

std::string zsh_script(std::span<const CommandSpec> commands) {
  std::string out = fmt::format(
      "#compdef reshard\n# Completion of reshard {} for zsh, made by: reshard completion zsh\n",
      version_text());
  out += kZshStart;
  for (const CommandSpec& command : commands)
    out += fmt::format("        {}\n",
                       quoted(fmt::format("{}:{}", command.name, command.description)));
  out += "      )\n      _describe command commands\n      ;;\n";
  out += "    arguments)\n      case $line[1] in\n";
  for (const CommandSpec& command : commands) out += zsh_command(command);
  return out +
         "      esac\n      ;;\n  esac\n}\n\n"
         "# As a file of fpath it is the function itself; otherwise it was sourced.\n"
         "if [[ $funcstack[1] == _reshard ]]; then\n  _reshard \"$@\"\nelse\n"
         "  compdef _reshard reshard\nfi\n";
}

}  // namespace reshard::cli::completion
