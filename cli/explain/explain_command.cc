// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "cli/commands.h"
#include "cli/explain/program_report.h"
#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/plan_text.h"
#include "reshard/base/file.h"
#include "reshard/base/number_text.h"
#include "reshard/io/cluster_file.h"
#include "reshard/io/json/program_json.h"
#include "reshard/program/form/serialise.h"
#include "reshard/refit/session_programs.h"
#include "reshard/simulate/cluster_places.h"

namespace reshard::cli {
namespace {

using Reach = ExplainArguments::Reach;

/// The largest serialised program that is read.
constexpr std::size_t kMaxProgramBytes = std::size_t{256} << 20;

std::size_t most_steps(const ExplainArguments& a) {
  return a.steps < 0 ? std::size_t(-1) : static_cast<std::size_t>(a.steps);
}

/// How ranks reach each other, for people and for the compiler.
struct Ways {
  WayBetween between;
  std::string text;
  bool one_process = false;
  std::shared_ptr<const RelayOptions> relays = nullptr;
};

Result<Ways> ways_of(const ExplainArguments& a) {
  if (!a.cluster.empty()) {
    const auto cluster = std::make_shared<ClusterSpec>(RESHARD_TRY(read_cluster(a.cluster)));
    return Ways{[cluster](Rank src, Rank dst) {
                  return cluster->reads(src, dst) ? PairPath::mapped : PairPath::message;
                },
                "as on " + cluster->name, cluster->one_process,
                cluster->one_process ? nullptr : relays_on(*cluster, a.routes)};
  }
  const auto always = [](PairPath way) { return [way](Rank, Rank) { return way; }; };
  switch (a.reach) {
    case Reach::direct: return Ways{always(PairPath::mapped), "memory of all ranks mapped"};
    case Reach::get:
      return Ways{always(PairPath::get), "memory of all ranks read by the transport"};
    case Reach::message: return Ways{always(PairPath::message), "messages between all ranks"};
    case Reach::process: break;
  }
  return Ways{always(PairPath::mapped), "all ranks in one process", true};
}

/// The deliveries to the rank, by the process that has the memory of all.
Result<std::vector<SessionProgram>> in_process(const LayoutPair& pair, Rank rank) {
  if (pair.quantises())
    return fail(Code::unsupported,
                "in one process, ranks that convert run as a session of direct paths; give --path "
                "direct");
  std::vector<SessionProgram> programs;
  programs.push_back({Route::plain, RESHARD_TRY(compile_in_process(*pair.planner, {&rank, 1})),
                      pair.planner->shared_source(), pair.planner->shared_target()});
  return programs;
}

Result<std::vector<SessionProgram>> programs_of(const LayoutPair& pair, Rank rank, const Ways& ways,
                                                const ExplainArguments& a) {
  if (!pair.planner->ranks().contains(rank))
    return fail(Code::invalid_argument,
                fmt::format("rank {} is in neither layout; their ranks are {}", rank.value(),
                            to_string(pair.planner->ranks())));
  if (ways.one_process) return in_process(pair, rank);
  SessionProgramOptions options;
  options.ignore = pair.ignore;
  options.only = pair.only;
  options.convert = a.convert;
  options.staging_bytes = a.staging_bytes;
  options.relays = ways.relays;
  return session_programs(session_side(pair.from), session_side(pair.to), rank, ways.between,
                          options);
}

tl::unexpected<Error> file_error(const std::string& path, const char* what) {
  return fail(Code::io,
              fmt::format("{}: cannot {}: {}", path, what, std::generic_category().message(errno)));
}

Result<> write_programs(const std::string& path, const std::vector<SessionProgram>& programs) {
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const auto bytes = serialise(programs[i].program);
    RESHARD_TRY(write_whole_file(programs.size() == 1 ? path : fmt::format("{}.{}", path, i),
                                 {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  return {};
}

Result<Program> read_program(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr) return file_error(path, "open");
  std::vector<std::byte> bytes, block(std::size_t{1} << 20);
  while (const std::size_t n = std::fread(block.data(), 1, block.size(), file.get())) {
    bytes.insert(bytes.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(n));
    if (bytes.size() > kMaxProgramBytes)
      return fail(Code::corrupt, fmt::format("{}: more than {}, is not a program", path,
                                             human_bytes(kMaxProgramBytes)));
  }
  if (std::ferror(file.get()) != 0) return file_error(path, "read");
  auto program = parse_program(bytes);
  if (!program) return tl::unexpected(std::move(program).error().in(path));
  return program;
}

Result<int> explain_file(const ExplainArguments& a) {
  const Program program = RESHARD_TRY(read_program(a.program));
  if (a.json) {
    print(json_report("program", program_object(program, {}, most_steps(a))));
    return 0;
  }
  const Style style = Style::of_stdout();
  print(style.title(fmt::format("rank {}", program.rank.value())) + "\n" +
        program_text(program, {}, most_steps(a), style));
  return 0;
}

std::string text_of(const Model& model, const LayoutPair& pair, const Ways& ways,
                    const std::vector<SessionProgram>& programs, const ExplainArguments& a) {
  const Style style = Style::of_stdout();
  std::string text = style.title(model_line(model)) + "\n" + sides_table(pair).text(style);
  for (std::size_t i = 0; i < programs.size(); ++i) {
    text += "\n" +
            style.title(fmt::format("rank {}, program {} of {}: tensors {}; {}", *a.rank, i + 1,
                                    programs.size(), in_words(programs[i].route), ways.text)) +
            "\n" + program_text(programs[i].program, programs[i].layouts(), most_steps(a), style);
  }
  return text;
}

std::string json_of(const Ways& ways, const std::vector<SessionProgram>& programs,
                    const ExplainArguments& a) {
  Json::Array list;
  for (const SessionProgram& p : programs) {
    Json::Object object{{"route", Json(std::string(name(p.route)))}};
    for (auto& member : program_object(p.program, p.layouts(), most_steps(a)))
      object.push_back(std::move(member));
    list.emplace_back(std::move(object));
  }
  return json_report(
      "explain",
      {{"rank", Json(*a.rank)}, {"ways", Json(ways.text)}, {"programs", Json(std::move(list))}});
}

}  // namespace

Result<int> execute(const ExplainArguments& a) {
  if (!a.program.empty()) return explain_file(a);
  const Model model = RESHARD_TRY(
      open_model(a.model, {.layers = a.layers, .ignore = a.ignore, .prefix = a.prefix}));
  const LayoutPair pair = RESHARD_TRY(make_layout_pair(model, a.from, a.to, {.only = a.only}));
  const Ways ways = RESHARD_TRY(ways_of(a));
  const auto programs =
      RESHARD_TRY(programs_of(pair, Rank(static_cast<Rank::rep>(*a.rank)), ways, a));
  if (!a.out.empty()) RESHARD_TRY(write_programs(a.out, programs));
  print(a.json ? json_of(ways, programs, a) : text_of(model, pair, ways, programs, a));
  return 0;
}

}  // namespace reshard::cli
