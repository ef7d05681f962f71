// SPDX-License-Identifier: Apache-2.0
// bash takes the words of a command line apart at = and :, too, which the script undoes:
// "--from=rules:cut" are the words "--from", "=", "rules", ":" and "cut".
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/completion/scripts.h"
#include "cli/json_report.h"

namespace reshard::cli::completion {
namespace {

constexpr std::string_view kBashStart = R"(_reshard_words() {
  COMPREPLY=($(compgen -W "$1" -- "$cur"))
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *: ]] && compopt -o nospace 2> /dev/null
}

_reshard_files() {
  local IFS=$'\n'
  compopt -o filenames 2> /dev/null
  COMPREPLY=($(compgen -f -- "$cur"))
}

_reshard() {
  local cur=${COMP_WORDS[COMP_CWORD]} at=$((COMP_CWORD - 1)) command=${COMP_WORDS[1]} option
  COMPREPLY=()
  if [[ $cur == : || $cur == = ]]; then
    at=$COMP_CWORD cur=
  fi
  option=${COMP_WORDS[at]}
  if [[ $option == : ]]; then
    case ${COMP_WORDS[at - 1]} in
      dtensor | rules | explicit) _reshard_files ;;
    esac
    return
  fi
  if [[ $option == = ]]; then
    option=${COMP_WORDS[at - 1]}
    [[ $option == --* ]] || return
  fi
)";

std::vector<std::string> option_names(const CommandSpec& command) {
  std::vector<std::string> names{"--help"};
  for (const Option& option : command.options.all())
    if (!option.is_positional()) names.push_back(option.name);
  return names;
}

/// How the value of an option is completed; "" if it is not.
std::string how(const Option& option) {
  if (!option.words.empty())
    return fmt::format("_reshard_words {}",
                       quoted(fmt::format("{}", fmt::join(option.words, " "))));
  return option.takes_files() ? "_reshard_files" : "";
}

/// The branch of "case $option in" for an option that needs a value.
std::string branch(const Option& option) {
  const std::string act = how(option);
  return fmt::format("        {}){} return ;;\n", option.name, act.empty() ? "" : " " + act + ";");
}

/// The commands that complete a word that is neither an option nor its value. Only the first word
/// of a command that takes several kinds is told from those after it.
std::string rest(const CommandSpec& command) {
  std::vector<std::string> kinds;
  for (const Option& option : command.options.all())
    if (option.is_positional() && !how(option).empty())
      if (kinds.empty() || kinds.back() != how(option)) kinds.push_back(how(option));
  if (kinds.empty()) return "_reshard_words \"$options\"";
  if (kinds.size() == 1) return kinds[0];
  return fmt::format("if ((COMP_CWORD == 2)); then {}; else {}; fi", kinds[0], kinds[1]);
}

std::string bash_command(const CommandSpec& command) {
  std::string out = fmt::format("    {})\n      options={}\n      case $option in\n", command.name,
                                quoted(fmt::format("{}", fmt::join(option_names(command), " "))));
  for (const Option& option : command.options.all())
    if (!option.is_positional() && !option.is_flag()) out += branch(option);
  return out +
         "      esac\n      if [[ $cur == -* ]]; then\n        _reshard_words \"$options\"\n" +
         fmt::format("      else\n        {}\n      fi\n      ;;\n", rest(command));
}

}  // namespace

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string bash_script(std::span<const CommandSpec> commands) {
  std::vector<std::string> names;
  for (const CommandSpec& command : commands) names.push_back(command.name);
  std::string out = fmt::format(
      "# Completion of reshard {} for bash, made by: reshard completion bash\n", version_text());
  out += kBashStart;
  out += fmt::format(
      "  local options\n  if ((COMP_CWORD == 1)); then\n    _reshard_words {}\n    return\n  fi\n",
      quoted(fmt::format("{} --help --version", fmt::join(names, " "))));
  out += "  case $command in\n";
  for (const CommandSpec& command : commands) out += bash_command(command);
  return out + "  esac\n}\n\ncomplete -F _reshard reshard\n";
}

}  // namespace reshard::cli::completion
