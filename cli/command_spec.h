// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.h"

/// The command line as data. Each command's folder describes its options; options.cc alone gives
/// them to CLI11, whose headers are slow to compile.
namespace reshard::cli {

constexpr Index kMaxRank = Index{1} << 20;
constexpr Index kMaxLayers = 100'000;

/// One option or positional argument of a command.
struct Option {
  std::string name;  ///< "--rank", or "IN" for a positional argument.
  std::string type;  ///< of the value, as the help prints it; none for flags and positionals.
  std::string help;
  std::function<Result<>(const std::string& value)> set;  ///< the error says what is wrong.
  std::function<void()> raise = {};                       ///< a flag, which has no value.
  /// Values that may follow one mention, which may be repeated: 1, or -1 for any number; 0: one
  /// mention and one value.
  int repeats = 0;
  std::string implied = {};  ///< the value of a mention without one; empty: each needs one.
  bool is_required = false;
  std::string group = {};  ///< the help's heading; empty: "Options".
  std::vector<std::string> needed = {}, excluded = {};
  /// The words by which shells complete the value; one that ends in ':' is the start of a value.
  /// Empty: files or nothing, by the type.
  std::vector<std::string> words = {};
  std::string brief = {};  ///< "-v", a short name of a flag; empty: it has none.

  Option& required() { return is_required = true, *this; }
  Option& under(std::string heading) { return group = std::move(heading), *this; }
  /// The other option must have been added before.
  Option& needs(std::string other) { return needed.push_back(std::move(other)), *this; }
  Option& excludes(std::string other) { return excluded.push_back(std::move(other)), *this; }
  Option& among(std::vector<std::string> values) { return words = std::move(values), *this; }

  bool is_flag() const { return raise != nullptr; }
  bool is_positional() const { return !name.starts_with('-'); }
  /// True if the value names a file or a folder, if only as one of several possibilities.
  bool takes_files() const;
};

/// The error of an option's value, as CLI11 words it. For checks of several options at once.
Result<> refuse(const std::string& option, const std::string& why);

/// The options of a command, in the order of its help. What the setters write to is borrowed. A
/// returned reference is valid until the next option is added.
class OptionList {
 public:
  Option& value(std::string name, std::string type, std::string help,
                std::function<Result<>(const std::string&)> set);
  Option& flag(std::string name, bool& to, std::string help);
  Option& text(std::string name, std::string& to, std::string type, std::string help);
  Option& bytes(std::string name, Index& to, std::string help);
  Option& layout(std::string name, std::string& to, std::string help);
  /// The same for an option that may be given several times.
  Option& layouts(std::string name, std::vector<std::string>& to, std::string help);
  Option& threads(int& to);
  /// --routes, of commands with --cluster.
  Option& routes(RouteMode& to);
  /// `repeats` as Option's: several after one option only where no positional can follow.
  Option& patterns(std::string name, std::set<std::string>& to, int repeats, std::string help);
  /// ModelOptions::prefix; may be empty.
  Option& prefix(std::optional<std::string>& to);
  /// ModelOptions::merge of the checkpoint that the help names.
  Option& merge(std::vector<std::string>& to, const std::string& checkpoint);
  /// The level of the log, in this process and those that it starts.
  void log_level();
  /// An integer from `least` to `most`. `to` is a T or an optional of one.
  template <class T, class To>
  Option& number(std::string name, To& to, T least, T most, std::string help) {
    return value(std::move(name), "N", std::move(help),
                 [&to, least, most](const std::string& s) -> Result<> {
                   to = RESHARD_TRY(parse_number<T>(s, least, most));
                   return {};
                 });
  }
  /// One of several words.
  template <class T>
  Option& choice(std::string name, T& to, std::vector<std::pair<std::string, T>> choices,
                 std::string help) {
    const std::string type =
        name[0] == '-' ? std::string(1, static_cast<char>(name[2] - 'a' + 'A')) : std::string();
    std::vector<std::string> words;
    for (const auto& [word, meaning] : choices) words.push_back(word);
    return value(std::move(name), type, std::move(help),
                 [&to, choices = std::move(choices), words](const std::string& s) -> Result<> {
                   for (const auto& [word, meaning] : choices)
                     if (word == s) return to = meaning, Result<>();
                   return not_one_of(s, words);
                 })
        .among(words);
  }

  /// A whole number in the form that from_chars takes, from `least` to `most`.
  template <class T>
  static Result<T> parse_number(const std::string& text, T least, T most) {
    T number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && stop == text.data() + text.size() && number >= least &&
        number <= most)
      return number;
    return not_a_number(text, std::to_string(least), std::to_string(most));
  }

  const std::vector<Option>& all() const { return options_; }

 private:
  static tl::unexpected<Error> not_a_number(const std::string& text, const std::string& least,
                                            const std::string& most);
  static Result<> not_one_of(const std::string& text, const std::vector<std::string>& words);
  std::vector<Option> options_;
};

/// An example of a command. Its files have the names that tests/cli/test_examples.py makes.
struct Example {
  std::string arguments;  ///< what follows "reshard ": "plan --model qwen3-4b ...".
  std::string help;       ///< what it does.
};

/// A command: what its help says, its options, and what they ask for once all are set.
struct CommandSpec {
  std::string name, usage, description;
  OptionList options = {};
  std::vector<Example> examples = {};
  std::function<Command()> command = {};
  /// Checks options against each other; `given` names those on the command line. May be empty.
  std::function<Result<>(const std::set<std::string>& given)> check = {};
};

CommandSpec plan_spec();
CommandSpec explain_spec();
CommandSpec run_spec();
CommandSpec convert_spec();
CommandSpec verify_spec();
CommandSpec delta_spec();
CommandSpec inspect_spec();
CommandSpec synth_spec();
CommandSpec transports_spec();
CommandSpec models_spec();
CommandSpec doctor_spec();
CommandSpec completion_spec();
CommandSpec man_spec();

/// All commands, in the order of the help.
std::vector<CommandSpec> command_specs();

/// The first line of the help of the program.
std::string_view program_summary();
/// And the meaning of M and L in the commands' usage, in lines.
std::string_view program_notation();

struct ExitCode {
  int code = 0;
  std::string_view meaning;
};
/// Those of all commands.
std::span<const ExitCode> exit_codes();

/// The options of `plan` and `run` that say what moves.
template <class Arguments>
void add_what_moves(OptionList& options, Arguments& a) {
  options.text("--model", a.model, "M", "config.json, checkpoint or named example").required();
  options.layout("--from", a.from, "layout of the source").required();
  options.layout("--to", a.to, "layout of the target").required();
  options.number<Index>("--layers", a.layers, 1, kMaxLayers,
                        "replace the config's number of layers");
  options.patterns("--ignore", a.ignore, -1,
                   "tensors that one side may lack, or that M has besides those of its config; * "
                   "matches any text, # a number");
  options.patterns("--only", a.only, -1,
                   "the tensors to move; others stay as they are; default: all");
  options.prefix(a.prefix);
}

}  // namespace reshard::cli
