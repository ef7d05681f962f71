// SPDX-License-Identifier: Apache-2.0
#include "cli/man/man_page.h"

#include <fmt/format.h>

#include "cli/doctor/environment.h"
#include "cli/json_report.h"

namespace reshard::cli::man {
namespace {

/// The text as roff shows it: no character of it is a command.
std::string plain(std::string_view text) {
  std::string out;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && (c == '.' || c == '\'')) out += "\\&";
    at_start = c == '\n';
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '~')
      out += "\\(ti";
    else if (c == '\'')
      out += "\\(aq";
    else
      out += c;
  }
  return out;
}

std::string bold(std::string_view text) { return "\\fB" + plain(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + plain(text) + "\\fR"; }
std::string entry(const std::string& term, std::string_view text) {
  return fmt::format(".TP\n{}\n{}\n", term, plain(text));
}

/// "--verify[=HOW]", "--model M", "IN"
std::string term(const Option& option) {
  if (option.is_positional()) return italic(option.name) + (option.repeats < 0 ? "..." : "");
  std::string out = option.brief.empty() ? "" : bold(option.brief) + ", ";
  out += bold(option.name);
  if (option.type.starts_with('['))
    out += plain("[=") + italic(option.type.substr(2, option.type.size() - 3)) + "]";
  else if (!option.type.empty())
    out += " " + italic(option.type);
  if (option.repeats < 0) out += "...";
  return out;
}

std::string command_text(const CommandSpec& command) {
  std::string out = fmt::format(".SS reshard {} {}\n{}.\n", command.name, plain(command.usage),
                                plain(command.description));
  if (command.usage.empty()) out.erase(out.find(" \n"), 1);
  for (const Option& option : command.options.all())
    out += entry(term(option), option.is_required ? option.help + "; required" : option.help);
  return out;
}

std::string examples_text(std::span<const CommandSpec> commands) {
  std::string out = ".SH EXAMPLES\n";
  for (const CommandSpec& command : commands)
    for (const Example& example : command.examples)
      out += entry(bold("reshard " + example.arguments), example.help);
  return out;
}

std::string environment_text() {
  std::string out = ".SH ENVIRONMENT\n";
  for (const doctor::Variable& v : doctor::environment_variables()) {
    if (v.of == doctor::Variable::Of::internal) continue;
    const std::string choices = v.choices.empty() ? "" : fmt::format("; one of {}", v.choices);
    out += entry(bold(v.name), std::string(v.help) + choices);
  }
  return out;
}

}  // namespace

std::string page(std::span<const CommandSpec> commands) {
  std::string out = fmt::format(
      ".\\\" SPDX-License-Identifier: Apache-2.0\n"
      ".TH RESHARD 1 \"\" \"reshard {}\" \"User Commands\"\n"
      ".SH NAME\nreshard \\- moves the weights of a model between parallel layouts\n"
      ".SH SYNOPSIS\n{} {} [{}]\n.br\n{} {} {}\n",
      version_text(), bold("reshard"), italic("COMMAND"), italic("OPTIONS"), bold("reshard"),
      italic("COMMAND"), bold("--help"));
  out += fmt::format(".SH DESCRIPTION\n{}\n.PP\n{}\n", plain(program_summary()),
                     plain(program_notation()));
  out += ".SH OPTIONS\n";
  out += entry(bold("-h") + ", " + bold("--help"), "print the help of the program or command");
  out += entry(bold("--version"), "print the version");
  out += ".SH COMMANDS\n";
  for (const CommandSpec& command : commands) out += command_text(command);
  out += examples_text(commands) + ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : exit_codes())
    out += entry(bold(std::to_string(code)), meaning);
  return out + environment_text();
}

}  // namespace reshard::cli::man
