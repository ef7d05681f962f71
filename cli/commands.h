// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/convert/convert.h"
#include "reshard/convert/delta.h"
#include "reshard/convert/synthesize.h"
#include "reshard/convert/verify.h"
#include "reshard/exec/refit_options.h"
#include "reshard/index/interval.h"
#include "reshard/refit/session.h"

/// The arguments of each subcommand, and execute(), which runs it and prints its report to standard
/// output. The result is the exit code; an error means one line on standard error and exit_code().
namespace reshard::cli {

struct PlanArguments {
  std::string model, from, to;
  std::optional<Index> layers;
  std::set<std::string> ignore;       ///< here and below: ModelOptions::ignore.
  std::set<std::string> only = {};    ///< PairOptions::only.
  std::optional<std::string> prefix;  ///< here and below: ModelOptions::prefix.
  std::optional<Index> rank;
  Index transfers = 0;  ///< number to list; -1: all.
  std::string cluster;  ///< file of a cluster to simulate the plan on; empty: none.
  RouteMode routes = RouteMode::direct;
  bool json = false, dot = false;
  int threads = 0;  ///< 0: one per core.
};

struct ExplainArguments {
  /// How the ranks reach each other's memory.
  enum class Reach { direct, get, message, process };
  std::string model, from, to;
  std::optional<Index> layers;
  std::set<std::string> ignore, only = {};
  std::optional<std::string> prefix;
  std::optional<Index> rank;
  Reach reach = Reach::direct;
  std::string cluster;  ///< file of a cluster that says so instead; empty: none.
  RouteMode routes = RouteMode::direct;
  Index staging_bytes = Index{64} << 20;
  ConversionSide convert = ConversionSide::receiver;
  Index steps = 0;      ///< number to list; -1: all.
  std::string out;      ///< file that gets the serialised program; empty: none.
  std::string program;  ///< file with a serialised program, which is printed instead; empty: none.
  bool json = false;
};

struct RunArguments {
  enum class Role { any, source, target };
  /// Ranks first to last.
  struct Ranks {
    int first = 0, last = 0;
  };
  std::string model, from, to;
  std::optional<Index> layers;
  std::set<std::string> ignore, only = {};
  std::optional<std::string> prefix;
  Index repeat = 3;
  bool verify = false, json = false;
  static constexpr int kAnyGpu = -1;
  /// Number of the GPU that has the ranks' memory; kAnyGpu: GPU 0, or in processes that of number
  /// rank mod the GPUs; none: host memory.
  std::optional<int> gpu;
  int threads = 0;
  RefitPath path = RefitPath::automatic;
  Index staging_bytes = Index{64} << 20;
  ConversionSide convert = ConversionSide::receiver;
  Buffering buffering = Buffering::in_place;
  bool check_fingerprints = false;  ///< compare fingerprints before each commit.
  std::string trace;                ///< file for the trace of the last refit; empty: none.
  std::uint64_t seed = 0;
  std::string transport = "inproc", interface;
  double deadline_seconds = 60;  ///< for joining, for each refit and for verification.
  bool spawn = false;            ///< start the ranks' processes.
  Role role = Role::any;         ///< the side of this program's ranks.
  std::string rendezvous, secret_file, job = "reshard";
  std::optional<Ranks> ranks;  ///< those of this program's processes; none: all.

  /// True if ranks are processes, false if they are memory of this one.
  bool in_processes() const { return transport != "inproc"; }
};

struct ConvertArguments {
  ConvertOptions options;
  bool json = false;
};

struct VerifyArguments {
  VerifyOptions options;
  bool json = false;
};

struct DeltaArguments {
  enum class Operation { make, apply, inspect };
  Operation operation = Operation::make;
  /// make: base, next, output; apply: base, deltas, output; inspect: a delta.
  std::vector<std::string> paths;
  std::string after;  ///< of make; empty: the base is an anchor.
  bool sync = false, json = false;
  int threads = 0;
};

struct InspectArguments {
  std::string model;
  std::vector<std::string> layouts;
  std::optional<Index> layers;
  std::optional<Index> rank;  ///< of the only layout.
  std::set<std::string> ignore;
  std::optional<std::string> prefix;
  bool json = false;
};

struct SynthArguments {
  SynthesizeOptions options;
  bool json = false;
};

struct TransportsArguments {
  bool json = false;
};

struct DoctorArguments {
  bool environment = false;  ///< lists the environment variables instead of examining anything.
  bool json = false;
};

struct ModelsArguments {
  std::string name;  ///< part of a class's name or model_type; empty: all classes.
  bool json = false;
};

struct CompletionArguments {
  enum class Shell { bash, zsh, fish };
  Shell shell = Shell::bash;
};

struct ManArguments {};

Result<int> execute(const PlanArguments& arguments);
Result<int> execute(const ExplainArguments& arguments);
Result<int> execute(const RunArguments& arguments);
Result<int> execute(const ConvertArguments& arguments);
Result<int> execute(const VerifyArguments& arguments);
Result<int> execute(const DeltaArguments& arguments);
Result<int> execute(const InspectArguments& arguments);
Result<int> execute(const SynthArguments& arguments);
Result<int> execute(const TransportsArguments& arguments);
Result<int> execute(const ModelsArguments& arguments);
Result<int> execute(const DoctorArguments& arguments);
Result<int> execute(const CompletionArguments& arguments);
Result<int> execute(const ManArguments& arguments);

using Command =
    std::variant<PlanArguments, ExplainArguments, RunArguments, ConvertArguments, VerifyArguments,
                 DeltaArguments, InspectArguments, SynthArguments, TransportsArguments,
                 ModelsArguments, DoctorArguments, CompletionArguments, ManArguments>;

}  // namespace reshard::cli
