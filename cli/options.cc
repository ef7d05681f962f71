// SPDX-License-Identifier: Apache-2.0
// Only this file includes CLI11, which is slow to compile.
#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <map>
#include <memory>

#include "reshard/base/number_text.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/name_pattern.h"

namespace reshard::cli {
namespace {

constexpr Index kMaxRank = Index{1} << 20;
constexpr Index kMaxLayers = 100'000;
constexpr int kMaxThreads = 1024;

[[noreturn]] void refuse(const std::string& option, const std::string& why) {
  throw CLI::ValidationError(option, why);
}

/// A whole number in the form that from_chars takes, from `least` to `most`.
template <class T>
T whole_number(const std::string& option, const std::string& text, T least, T most) {
  T value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < least || value > most)
    refuse(option, fmt::format("'{}' must be a whole number from {} to {}", text, least, most));
  return value;
}

template <class T, class To>
CLI::Option* add_number(CLI::App& app, const std::string& name, To& to, T least, T most,
                        const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [name, &to, least, most](const std::string& s) {
            to = whole_number<T>(name, s, least, most);
          },
          help)
      ->type_name("N");
}

CLI::Option* add_bytes(CLI::App& app, const std::string& name, Index& to, const std::string& help) {
  const auto set = [name, &to](const std::string& s) {
    const auto bytes = parse_bytes(s);
    if (!bytes) refuse(name, bytes.error().message);
    to = *bytes;
  };
  return app.add_option_function<std::string>(name, set, help)->type_name("BYTES");
}

CLI::Option* add_layout(CLI::App& app, const std::string& name, std::string& to,
                        const std::string& help) {
  const auto set = [name, &to](const std::string& s) {
    if (const auto spec = read_layout_text(s); !spec) refuse(name, spec.error().message);
    to = s;
  };
  return app.add_option_function<std::string>(name, set, help)->type_name("L");
}

/// The same for an option that may be given several times.
void add_layouts(CLI::App& app, const std::string& name, std::vector<std::string>& to,
                 const std::string& help) {
  const auto set = [name, &to](const std::vector<std::string>& texts) {
    for (const std::string& s : texts)
      if (const auto spec = read_layout_text(s); !spec) refuse(name, spec.error().message);
    to = texts;
  };
  app.add_option_function<std::vector<std::string>>(name, set, help)
      ->type_name("L")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& to,
                      const std::string& type, const std::string& help) {
  return app.add_option(name, to, help)->type_name(type);
}

template <class T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& to,
                        const std::vector<std::pair<std::string, T>>& choices,
                        const std::string& help) {
  const auto set = [name, &to, choices](const std::string& text) {
    std::string known;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (choices[i].first == text) {
        to = choices[i].second;
        return;
      }
      known += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i].first;
    }
    refuse(name, fmt::format("'{}' must be {}", text, known));
  };
  return app.add_option_function<std::string>(name, set, help)
      ->type_name(std::string(1, static_cast<char>(std::toupper(name[2]))));
}

/// "4-7" or "4".
RunArguments::Ranks rank_range(const std::string& text) {
  constexpr const char* kName = "--ranks";
  const int most = static_cast<int>(kMaxRank);
  const auto dash = text.find('-', 1);
  const int first = whole_number(kName, text.substr(0, dash), 0, most);
  if (dash == std::string::npos) return {first, first};
  return {first, whole_number(kName, text.substr(dash + 1), first, most)};
}

double seconds_number(const std::string& option, const std::string& text) {
  constexpr double kLeast = 0.001, kMost = 1e6;
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() ||
      !(value >= kLeast && value <= kMost))
    refuse(option, fmt::format("'{}' must be a number of seconds from 0.001 to 1000000", text));
  return value;
}

void check_transport(const std::string& text) {
  constexpr const char* kName = "--transport";
  if (text == "nccl" || text == "nvshmem")
    refuse(kName, fmt::format("{} carries the memory of GPUs, and the weights of run are in host "
                              "memory; give shm, mpi, gloo or ucx",
                              text));
  for (const char* known : {"inproc", "shm", "mpi", "gloo", "ucx"})
    if (text == known) return;
  refuse(kName, fmt::format("'{}' must be inproc, shm, mpi, gloo or ucx", text));
}

void add_threads(CLI::App& app, int& threads) {
  add_number<int>(app, "--threads", threads, 1, kMaxThreads,
                  "threads to use; default: one per core");
}

/// Several after one --ignore only where no other argument can follow.
void add_ignore(CLI::App& app, std::set<std::string>& ignore, int most, const char* help) {
  const auto add = [&ignore](const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns)
      if (const auto fits = check_tensor_name(pattern); !fits)
        refuse("--ignore", fits.error().message);
    ignore.insert(patterns.begin(), patterns.end());
  };
  app.add_option_function<std::vector<std::string>>("--ignore", add, help)
      ->type_name("PATTERN")
      ->type_size(1)
      ->expected(1, most)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// The three options that say what moves.
template <class Arguments>
void add_refit(CLI::App& app, Arguments& a) {
  add_text(app, "--model", a.model, "M", "config.json, checkpoint or named example")->required();
  add_layout(app, "--from", a.from, "the layout that the weights are in")->required();
  add_layout(app, "--to", a.to, "the layout that they go to")->required();
  add_number<Index>(app, "--layers", a.layers, 1, kMaxLayers,
                    "use a config with this many layers instead of its own");
  add_ignore(app, a.ignore, -1,
             "tensors that one side may lack, or M have beside those of its config: * is any text, "
             "# a number");
}

std::string without_controls(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
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

  /// What stands between an option's name and its description.
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (!option->get_type_name().empty()) text += " " + option->get_type_name();
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += "...";
    return text;
  }

 private:
  std::map<std::string, std::string> usages_;
};

class CommandLine {
 public:
  CommandLine() : help_(std::make_shared<HelpFormatter>()) {
    app_.description(
        "reshard moves the weights of a model from one parallel layout to another.\n\n"
        "M is a config.json, a checkpoint's folder or file, or a named example such as "
        "llama-3.1-8b.\n"
        "L is a layout: hf, megatron:tp=4,pp=2,ep=8,etp=1,dp=2, vllm:tp=8,dp=4,ep=8, "
        "sglang:tp=8,ep=8,\n"
        "fsdp:shard=64, dtensor:FILE or rules:FILE; "
        "offset=64 puts it on the ranks from 64 on.");
    app_.set_version_flag("--version", "reshard " RESHARD_VERSION, "print the version and exit");
    app_.set_help_flag("-h,--help", "print this and exit");
    app_.require_subcommand(1);
    app_.formatter(help_);
    help_->label("Positionals", "Arguments");
    help_->column_width(28);
    add_plan();
    add_run();
    add_convert();
    add_verify();
    add_inspect();
    add_synth();
    add_transports();
    app_.footer(
        "reshard COMMAND --help tells the options of a command. Exit codes: 0 done, 1 failed, 2 "
        "usage.");
  }

  tl::expected<Command, Stop> parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
      if (*run_app_) check_run();
    } catch (const CLI::CallForHelp&) {
      return tl::unexpected(Stop{0, help()});
    } catch (const CLI::CallForVersion& e) {
      return tl::unexpected(Stop{0, std::string(e.what()) + "\n"});
    } catch (const CLI::ParseError& e) {
      return tl::unexpected(Stop{2, what_is_wrong(e)});
    }
    return command();
  }

 private:
  CLI::App* add(const std::string& name, const std::string& usage, const std::string& description) {
    CLI::App* sub = app_.add_subcommand(name, description);
    sub->group("Commands");
    help_->set_usage(name, name + " " + usage);
    return sub;
  }

  void add_plan() {
    CLI::App& s = *(
        plan_app_ = add("plan", "--model M --from L --to L [OPTIONS]",
                        "what a refit would move; touches no data, works for thousands of ranks"));
    add_refit(s, plan_);
    add_number<Index>(s, "--rank", plan_.rank, 0, kMaxRank, "this rank's part alone");
    const auto transfers = [this](const std::string& text) {
      plan_.transfers =
          text == "all" ? -1 : whole_number<Index>("--transfers", text, 0, Index{1} << 40);
    };
    auto* list = s.add_option_function<std::string>("--transfers", transfers,
                                                    "list so many of the rank's transfers, or all");
    list->type_name("N")->needs("--rank");
    auto* json = s.add_flag("--json", plan_.json, "print one JSON object");
    s.add_flag("--dot", plan_.dot, "print a graphviz graph of the ranks and the bytes between them")
        ->excludes(json)
        ->excludes("--rank");
    add_threads(s, plan_.threads);
  }

  void add_run() {
    CLI::App& s = *(run_app_ = add("run", "--model M --from L --to L [OPTIONS]",
                                   "a refit of real bytes, in this process or over processes"));
    add_refit(s, run_);
    add_number<Index>(s, "--repeat", run_.repeat, 1, 1'000'000,
                      "how often, as versions 1, 2, ...; default 3");
    s.add_flag("--verify", run_.verify, "prove every byte afterwards");
    s.add_flag("--json", run_.json, "print one JSON object");
    add_choice<RefitPath>(s, "--path", run_.path,
                          {{"auto", RefitPath::automatic},
                           {"direct", RefitPath::direct},
                           {"message", RefitPath::message}},
                          "direct: copies from the source's memory; message: packed; auto: direct "
                          "where every rank can; default auto");
    add_bytes(s, "--staging-bytes", run_.staging_bytes,
              "memory of a rank for messages and for what is converted on its way; default 64MiB");
    add_session(s);
    add_number<std::uint64_t>(s, "--seed", run_.seed, 0, ~std::uint64_t{0},
                              "of the values where M is a config; default 0");
    add_threads(s, run_.threads);
    add_run_processes(s);
  }

  void add_session(CLI::App& s) {
    add_choice<ConversionSide>(
        s, "--convert", run_.convert,
        {{"receiver", ConversionSide::receiver}, {"sender", ConversionSide::sender}},
        "who quantises and dequantises: receiver, or sender where it can; default receiver");
    add_choice<Buffering>(
        s, "--buffering", run_.buffering,
        {{"in-place", Buffering::in_place}, {"doubled", Buffering::doubled}},
        "in-place: targets are torn while they are written; doubled: a second copy is written, "
        "then the two change places; default in-place");
    s.add_flag("--prove", run_.prove, "compare fingerprints before each version is committed");
  }

  void add_run_processes(CLI::App& s) {
    constexpr const char* kGroup = "Over processes";
    const auto transport = [this](const std::string& text) {
      check_transport(text);
      run_.transport = text;
    };
    s.add_option_function<std::string>(
         "--transport", transport,
         "inproc: all ranks in this process; shm, mpi, gloo, ucx: a process each; default inproc")
        ->type_name("T")
        ->group(kGroup);
    s.add_flag("--spawn", run_.spawn, "start the processes here; else mpirun, srun or torchrun did")
        ->group(kGroup);
    add_text(s, "--interface", run_.interface, "IF", "network interface or address to use")
        ->group(kGroup);
    const auto seconds = [this](const std::string& text) {
      run_.deadline_seconds = seconds_number("--deadline", text);
    };
    s.add_option_function<std::string>("--deadline", seconds,
                                       "seconds to join, for each refit and to prove; default 60")
        ->type_name("S")
        ->group(kGroup);
    auto* url = add_text(s, "--rendezvous", run_.rendezvous, "URL",
                         "where processes meet: tcp://HOST:PORT of rank 0, or file:///FOLDER");
    url->group(kGroup);
    const auto ranks = [this](const std::string& text) { run_.ranks = rank_range(text); };
    auto* own = s.add_option_function<std::string>(
        "--ranks", ranks, "which ranks the processes of this program are: FIRST-LAST");
    own->type_name("R")->needs(url)->group(kGroup);
    add_choice<RunArguments::Role>(
        s, "--role", run_.role,
        {{"source", RunArguments::Role::source}, {"target", RunArguments::Role::target}},
        "of two programs, the one with the ranks of --from or of --to")
        ->needs(url)
        ->needs(own)
        ->group(kGroup);
    add_text(s, "--secret-file", run_.secret_file, "FILE",
             "what all processes know; readable by its owner only")
        ->needs(url)
        ->group(kGroup);
    add_text(s, "--job", run_.job, "NAME", "tells groups at one rendezvous apart; default reshard")
        ->needs(url)
        ->group(kGroup);
  }

  void check_run() const {
    const RunArguments& a = run_;
    if (!a.in_processes()) {
      for (const char* name : {"--spawn", "--interface", "--deadline", "--rendezvous"})
        if (run_app_->count(name) > 0)
          refuse(name, "the ranks of --transport inproc are in this process; give another one");
      return;
    }
    if (a.spawn && a.transport == "mpi")
      refuse("--spawn", "processes of MPI are started by mpirun or srun, not here");
    if (a.rendezvous.empty()) return;
    const bool tcp = a.rendezvous.starts_with("tcp://");
    if (!tcp && !a.rendezvous.starts_with("file:///"))
      refuse("--rendezvous", fmt::format("'{}' must be tcp://HOST:PORT or file:///FOLDER",
                                         without_controls(a.rendezvous)));
    if (tcp && a.secret_file.empty())
      refuse("--rendezvous", "tcp:// needs --secret-file, so that nobody else joins");
  }

  void add_convert() {
    ConvertOptions& o = convert_.options;
    CLI::App& s =
        *(convert_app_ = add("convert", "IN OUT [--from L] --to L [OPTIONS]",
                             "a checkpoint into another layout; streams, resumes after a kill"));
    add_text(s, "IN", o.input, "", "the checkpoint's folder or file")->required();
    add_text(s, "OUT", o.output, "", "the folder to write; must not exist")->required();
    add_layout(s, "--from", o.from, "the layout of IN; default: its own");
    add_layout(s, "--to", o.to, "the layout of OUT")->required();
    add_bytes(s, "--buffer-bytes", o.buffer_bytes, "memory for bytes on their way; default 64MiB");
    add_bytes(s, "--max-shard-bytes", o.max_shard_bytes,
              "most tensor bytes in a file of layout hf; default 5GB");
    add_ignore(
        s, o.ignore, 1,
        "tensors that OUT's layout may lack, or IN have beside those of its config: * is any "
        "text, # a number");
    s.add_flag("--sync", o.sync, "wait until all of OUT is on the disk");
    add_threads(s, o.threads);
  }

  void add_verify() {
    VerifyOptions& o = verify_.options;
    CLI::App& s =
        *(verify_app_ = add("verify", "A B [OPTIONS]",
                            "whether two checkpoints in any layouts hold the same values"));
    add_text(s, "A", o.a, "", "a checkpoint")->required();
    add_text(s, "B", o.b, "", "another")->required();
    add_ignore(s, o.ignore, 1, "tensors not to compare: * is any text, # a number");
    s.add_flag("--json", verify_.json, "print one JSON object");
    add_threads(s, o.threads);
  }

  void add_inspect() {
    CLI::App& s = *(inspect_app_ = add("inspect", "M [OPTIONS]",
                                       "what a model is, and what each rank of a layout holds"));
    add_text(s, "M", inspect_.model, "", "config.json, checkpoint or named example")->required();
    add_layouts(
        s, "--layout", inspect_.layouts,
        "what it does to the tensors and what its ranks hold; may be repeated; default: the "
        "checkpoint's own");
    add_number<Index>(s, "--rank", inspect_.rank, 0, kMaxRank,
                      "list the local tensors of this rank");
    add_number<Index>(s, "--layers", inspect_.layers, 1, kMaxLayers,
                      "use a config with this many layers instead of its own");
    add_ignore(s, inspect_.ignore, 1,
               "tensors that M may have beside those of its config: * is any text, # a number");
    s.add_flag("--json", inspect_.json, "print one JSON object");
  }

  void add_synth() {
    SynthesizeOptions& o = synth_.options;
    CLI::App& s =
        *(synth_app_ = add("synth", "CONFIG OUT [OPTIONS]",
                           "a valid checkpoint of a config's structure, with made-up values"));
    add_text(s, "CONFIG", o.config, "", "config.json or named example")->required();
    add_text(s, "OUT", o.output, "", "the folder to write; must not exist")->required();
    add_number<Index>(s, "--layers", o.layers, 1, kMaxLayers,
                      "this many layers instead of the config's");
    add_number<std::uint64_t>(s, "--seed", o.seed, 0, ~std::uint64_t{0},
                              "of the values; default 0");
    add_bytes(s, "--max-shard-bytes", o.max_shard_bytes,
              "most tensor bytes in a file; default 5GB");
    add_threads(s, o.threads);
  }

  void add_transports() {
    transports_app_ = add("transports", "[--json]",
                          "what can carry bytes between ranks, and what of it is in this build");
    transports_app_->add_flag("--json", transports_.json, "print one JSON list");
  }

  Command command() const {
    if (*plan_app_) return plan_;
    if (*run_app_) return run_;
    if (*convert_app_) return convert_;
    if (*verify_app_) return verify_;
    if (*inspect_app_) return inspect_;
    if (*synth_app_) return synth_;
    return transports_;
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
    const auto all = [](const CLI::App*) { return true; };
    for (const CLI::App* sub : app_.get_subcommands(all))
      known += (known.empty() ? "" : ", ") + sub->get_name();
    const auto rest = app_.remaining();
    const auto what = rest.empty() ? std::string("a command is missing")
                                   : fmt::format("unknown command '{}'", without_controls(rest[0]));
    return fmt::format("{}; known are {}; see reshard --help", what, known);
  }

  /// One line, whatever the user typed.
  std::string what_is_wrong(const CLI::ParseError& error) const {
    constexpr int kRequired = static_cast<int>(CLI::ExitCodes::RequiredError);
    if (chosen().empty() && error.get_exit_code() == kRequired) return which_command();
    const std::string text = without_controls(error.what());
    const std::string name = chosen().empty() ? "reshard" : "reshard " + chosen();
    return fmt::format("{}; see {} --help", text, name);
  }

  std::shared_ptr<HelpFormatter> help_;
  CLI::App app_;
  CLI::App *plan_app_, *run_app_, *convert_app_, *verify_app_, *inspect_app_, *synth_app_,
      *transports_app_;
  PlanArguments plan_;
  RunArguments run_;
  ConvertArguments convert_;
  VerifyArguments verify_;
  InspectArguments inspect_;
  SynthArguments synth_;
  TransportsArguments transports_;
};

}  // namespace

tl::expected<Command, Stop> parse_command_line(int argc, const char* const* argv) {
  return CommandLine().parse(argc, argv);
}

}  // namespace reshard::cli
