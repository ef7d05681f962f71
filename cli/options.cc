// SPDX-License-Identifier: Apache-2.0
// The only file that includes CLI11, which takes longer to compile than the rest of the program.
// All values are text to it, which keeps that short; command_spec.h says what the text may be.
#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "cli/command_spec.h"
#include "cli/exit_code.h"
#include "cli/json_report.h"
#include "reshard/base/closest_name.h"

namespace reshard::cli {
namespace {

std::string without_controls(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}

/// The section "Examples:" of the command's help, without a newline at the end.
std::string examples_text(const CommandSpec& spec) {
  std::string text = "Examples:";
  for (const auto& [arguments, help] : spec.examples)
    text += fmt::format("\n  reshard {}\n      {}", arguments, help);
  return text;
}

/// CLI11's help with usage lines that say what a command needs.
class HelpFormatter : public CLI::Formatter {
 public:
  void set_usage(const std::string& command, const std::string& usage) { usages_[command] = usage; }
  std::string make_usage(const CLI::App* app, std::string) const override {
    const auto usage = usages_.find(app->get_name());
    return fmt::format("\nUsage: reshard {}\n",
                       usage == usages_.end() ? "COMMAND [OPTIONS]" : usage->second);
  }

  /// The text between an option's name and its description.
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    const std::string type = option->get_type_name();
    if (!type.empty()) text += (type[0] == '[' ? "" : " ") + type;
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += "...";
    return text;
  }

 private:
  std::map<std::string, std::string> usages_;
};

class CommandLine {
 public:
  CommandLine() : help_(std::make_shared<HelpFormatter>()) {
    app_.description(fmt::format("{}\n\n{}", program_summary(), program_notation()));
    app_.set_version_flag("--version", "reshard " + std::string(version_text()),
                          "print the version and exit");
    app_.set_help_flag("-h,--help", "print this and exit");
    app_.require_subcommand(1);
    app_.formatter(help_);
    help_->label("Positionals", "Arguments");
    help_->column_width(28);
    for (CommandSpec& spec : specs_) add(spec);
    std::vector<std::string> codes;
    for (const auto& [code, meaning] : exit_codes())
      codes.push_back(fmt::format("{} {}", code, meaning));
    app_.footer(
        fmt::format("reshard COMMAND --help lists the options of a command. Exit codes: {}.",
                    fmt::join(codes, ", ")));
  }

  tl::expected<Command, Stop> parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      return tl::unexpected(Stop{kDone, help()});
    } catch (const CLI::CallForVersion& e) {
      return tl::unexpected(Stop{kDone, std::string(e.what()) + "\n"});
    } catch (const CLI::ParseError& e) {
      return tl::unexpected(Stop{kWrongUse, what_is_wrong(e)});
    }
    const CommandSpec& spec = *std::find_if(
        specs_.begin(), specs_.end(), [&](const CommandSpec& s) { return s.name == chosen(); });
    if (spec.check)
      if (const auto right = spec.check(given_); !right)
        return tl::unexpected(Stop{kWrongUse, with_hint(right.error().message)});
    return spec.command();
  }

 private:
  void add(CommandSpec& spec) {
    CLI::App& sub = *app_.add_subcommand(spec.name, spec.description);
    sub.group("Commands");
    help_->set_usage(spec.name, spec.name + " " + spec.usage);
    sub.footer(examples_text(spec));
    for (const Option& option : spec.options.all()) {
      CLI::Option* added = add(sub, option);
      if (option.is_required) added->required();
      if (!option.group.empty()) added->group(option.group);
      for (const std::string& other : option.needed) added->needs(sub.get_option(other));
      for (const std::string& other : option.excluded) added->excludes(sub.get_option(other));
    }
  }

  CLI::Option* add(CLI::App& app, const Option& option) {
    if (option.is_flag())
      return app.add_flag_callback(
          option.brief.empty() ? option.name : option.brief + "," + option.name,
          [this, &option] {
            given_.insert(option.name);
            option.raise();
          },
          option.help);
    const auto set = [this, &option](const std::string& value) {
      given_.insert(option.name);
      if (const auto right = option.set(value); !right)
        throw CLI::ValidationError(option.name, right.error().message);
    };
    if (option.repeats == 0 && option.implied.empty())
      return app.add_option_function<std::string>(option.name, set, option.help)
          ->type_name(option.type);
    const auto set_all = [set](const std::vector<std::string>& values) {
      for (const std::string& value : values) set(value);
    };
    return app.add_option_function<std::vector<std::string>>(option.name, set_all, option.help)
        ->type_name(option.type)
        ->type_size(1)
        ->default_str(option.implied)
        ->expected(option.implied.empty() ? 1 : 0, option.implied.empty() ? option.repeats : 1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

  /// "plan", or "" before a command was recognised.
  std::string chosen() const {
    const auto subs = app_.get_subcommands();
    return subs.empty() ? "" : subs[0]->get_name();
  }

  std::string help() const {
    const auto subs = app_.get_subcommands();
    return subs.empty() ? app_.help() : subs[0]->help();
  }

  std::string which_command() const {
    std::string known;
    for (const CommandSpec& spec : specs_) known += (known.empty() ? "" : ", ") + spec.name;
    const auto rest = app_.remaining();
    const auto what = rest.empty()
                          ? std::string("a command is missing")
                          : fmt::format("unknown command '{}'{}", without_controls(rest[0]),
                                        did_you_mean_one_of(rest[0], known));
    return fmt::format("{}; known are {}; see reshard --help", what, known);
  }

  std::string with_hint(const std::string& text) const {
    const std::string name = chosen().empty() ? "reshard" : "reshard " + chosen();
    return fmt::format("{}; see {} --help", without_controls(text), name);
  }

  /// One line, whatever the user typed.
  std::string what_is_wrong(const CLI::ParseError& error) const {
    constexpr int kRequired = static_cast<int>(CLI::ExitCodes::RequiredError);
    if (chosen().empty() && error.get_exit_code() == kRequired) return which_command();
    // A misspelt option that is required is told before the one that is missing.
    if (const std::string option = unknown_option(); !option.empty())
      return with_hint(
          fmt::format("unknown option {}{}", option, did_you_mean(option, options_of_chosen())));
    return with_hint(error.what());
  }

  /// An option on the command line that the command does not have; empty if there is none.
  std::string unknown_option() const {
    if (chosen().empty()) return "";
    for (const std::string& word : app_.remaining(true))
      if (word.starts_with("--")) return word.substr(0, word.find('='));
    return "";
  }

  std::vector<std::string> options_of_chosen() const {
    std::vector<std::string> names;
    for (const CommandSpec& spec : specs_)
      if (spec.name == chosen())
        for (const Option& option : spec.options.all())
          if (option.name.starts_with("--")) names.push_back(option.name);
    return names;
  }

  std::shared_ptr<HelpFormatter> help_;
  CLI::App app_;
  std::vector<CommandSpec> specs_ = command_specs();
  std::set<std::string> given_;
};

}  // namespace

tl::expected<Command, Stop> parse_command_line(int argc, const char* const* argv) {
  return CommandLine().parse(argc, argv);
}

}  // namespace reshard::cli
