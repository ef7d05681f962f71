// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "cli/command_spec.h"
#include "cli/run/device_run.h"

namespace reshard::cli {
namespace {

constexpr const char* kProcesses = "Over processes";

/// "4-7" or "4".
Result<RunArguments::Ranks> parse_ranks(const std::string& text) {
  const int most = static_cast<int>(kMaxRank);
  const auto dash = text.find('-', 1);
  const int first = RESHARD_TRY(OptionList::parse_number(text.substr(0, dash), 0, most));
  if (dash == std::string::npos) return RunArguments::Ranks{first, first};
  const int last = RESHARD_TRY(OptionList::parse_number(text.substr(dash + 1), first, most));
  return RunArguments::Ranks{first, last};
}

Result<double> parse_seconds(const std::string& text) {
  constexpr double kLeast = 0.001, kMax = 1e6;
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && stop == text.data() + text.size() && value >= kLeast && value <= kMax)
    return value;
  return fail(Code::invalid_argument,
              fmt::format("'{}' must be a number of seconds from 0.001 to 1000000", text));
}

const std::vector<std::string>& transports() {
  static const std::vector<std::string> kNames = {"inproc", "shm",  "mpi",    "gloo",
                                                  "ucx",    "nccl", "nvshmem"};
  return kNames;
}

Result<> check_transport(const std::string& text) {
  if (std::ranges::find(transports(), text) != transports().end()) return {};
  return fail(
      Code::invalid_argument,
      fmt::format("'{}' must be inproc, shm, mpi, gloo or ucx; or nccl or nvshmem for GPUs", text));
}

void add_verify(OptionList& options, RunArguments& a) {
  options
      .value("--verify", "[=HOW]",
             "bytes: verify every byte afterwards, the default; fingerprints: compare fingerprints "
             "before each version is committed; may be given for both",
             [&a](const std::string& text) -> Result<> {
               if (text == "bytes") return a.verify = true, Result<>();
               if (text == "fingerprints") return a.check_fingerprints = true, Result<>();
               return fail(Code::invalid_argument,
                           fmt::format("'{}' must be bytes or fingerprints", text));
             })
      .among({"bytes", "fingerprints"})
      .implied = "bytes";
}

void add_session(OptionList& options, RunArguments& a) {
  options.choice<ConversionSide>(
      "--convert", a.convert,
      {{"receiver", ConversionSide::receiver}, {"sender", ConversionSide::sender}},
      "the side that quantises and dequantises: receiver, or sender where it can; default "
      "receiver");
  options.choice<Buffering>("--buffering", a.buffering,
                            {{"in-place", Buffering::in_place}, {"doubled", Buffering::doubled}},
                            "in-place: overwrite targets, which are torn meanwhile; doubled: write "
                            "a second copy, then swap; default in-place");
}

void add_processes(OptionList& options, RunArguments& a) {
  options
      .value("--transport", "T",
             "inproc: all ranks in this process; shm, mpi, gloo, ucx, and for GPUs nccl, nvshmem: "
             "one process per rank; default inproc",
             [&a](const std::string& text) -> Result<> {
               RESHARD_TRY(check_transport(text));
               a.transport = text;
               return {};
             })
      .among(transports())
      .under(kProcesses);
  options
      .flag("--spawn", a.spawn,
            "start the processes; otherwise mpirun, srun or torchrun starts them")
      .under(kProcesses);
  options.text("--interface", a.interface, "IF", "network interface or address to use")
      .under(kProcesses);
  options
      .value("--deadline", "S",
             "seconds for joining, for each refit and for verification; default 60",
             [&a](const std::string& text) -> Result<> {
               a.deadline_seconds = RESHARD_TRY(parse_seconds(text));
               return {};
             })
      .under(kProcesses);
  options
      .text("--rendezvous", a.rendezvous, "URL",
            "where processes find each other: tcp://HOST:PORT of rank 0, or file:///FOLDER")
      .under(kProcesses);
  options
      .value("--ranks", "R", "ranks of this program's processes: FIRST-LAST",
             [&a](const std::string& text) -> Result<> {
               a.ranks = RESHARD_TRY(parse_ranks(text));
               return {};
             })
      .needs("--rendezvous")
      .under(kProcesses);
  options
      .choice<RunArguments::Role>(
          "--role", a.role,
          {{"source", RunArguments::Role::source}, {"target", RunArguments::Role::target}},
          "of two programs, this one has the ranks of --from (source) or --to (target)")
      .needs("--rendezvous")
      .needs("--ranks")
      .under(kProcesses);
  options
      .text("--secret-file", a.secret_file, "FILE",
            "file with the secret that all processes share; readable by its owner only")
      .needs("--rendezvous")
      .under(kProcesses);
  options
      .text("--job", a.job, "NAME",
            "name of the group, if several share a rendezvous; default reshard")
      .needs("--rendezvous")
      .under(kProcesses);
}

/// On a GPU one process copies for all ranks, without a session; processes have one.
Result<> check_device(const RunArguments& a, const std::set<std::string>& given) {
  if (!a.gpu && (a.transport == "nccl" || a.transport == "nvshmem"))
    return refuse("--transport",
                  fmt::format("{} carries the memory of GPUs, and the weights of run are in host "
                              "memory; add --device cuda, or give shm, mpi, gloo or ucx",
                              a.transport));
  if (!a.gpu || a.in_processes()) return {};
  for (const char* name : {"--buffering", "--trace", "--path"})
    if (given.contains(name))
      return refuse(name, "a refit on a GPU is one copy so far, without a session");
  return {};
}

Result<> check_options(const RunArguments& a, const std::set<std::string>& given) {
  RESHARD_TRY(check_device(a, given));
  if (!a.in_processes()) {
    for (const char* name : {"--spawn", "--interface", "--deadline", "--rendezvous"})
      if (given.contains(name))
        return refuse(name,
                      "the ranks of --transport inproc are in this process; give another one");
    return {};
  }
  if (a.spawn && a.transport == "mpi")
    return refuse("--spawn", "processes of MPI are started by mpirun or srun, not here");
  if (a.rendezvous.empty()) return {};
  const bool tcp = a.rendezvous.starts_with("tcp://");
  if (!tcp && !a.rendezvous.starts_with("file:///"))
    return refuse("--rendezvous",
                  fmt::format("'{}' must be tcp://HOST:PORT or file:///FOLDER", a.rendezvous));
  if (tcp && a.secret_file.empty())
    return refuse("--rendezvous", "tcp:// needs --secret-file, so that nobody else joins");
  return {};
}

}  // namespace

CommandSpec run_spec() {
  CommandSpec spec{"run", "--model M --from L --to L [OPTIONS]",
                   "runs a refit on real memory, in this process or over several"};
  const auto a = std::make_shared<RunArguments>();
  OptionList& options = spec.options;
  add_what_moves(options, *a);
  options.number<Index>("--repeat", a->repeat, 1, 1'000'000,
                        "number of refits, as versions 1, 2, ...; default 3");
  add_verify(options, *a);
  options.flag("--json", a->json, "print one JSON object");
  options
      .value("--device", "D",
             "memory of the ranks: cpu; cuda: a GPU, of which processes take one each in turn; "
             "cuda:N: "
             "that GPU; default cpu",
             [a](const std::string& text) -> Result<> {
               a->gpu.reset();
               if (text != "cpu") a->gpu = RESHARD_TRY(parse_gpu(text));
               return {};
             })
      .among({"cpu", "cuda"});
  options.choice<RefitPath>("--path", a->path,
                            {{"auto", RefitPath::automatic},
                             {"direct", RefitPath::direct},
                             {"message", RefitPath::message}},
                            "direct: copy from the source's memory; message: send packed messages; "
                            "auto: direct if every rank can; default auto");
  options.bytes("--staging-bytes", a->staging_bytes,
                "memory of each rank for messages and conversions; default 64MiB");
  add_session(options, *a);
  options.text("--trace", a->trace, "FILE",
               "write what every rank did in the last refit as a Chrome trace, and say why it was "
               "slow");
  options.number<std::uint64_t>("--seed", a->seed, 0, ~std::uint64_t{0},
                                "seed of the values if M is a config; default 0");
  options.threads(a->threads);
  add_processes(options, *a);
  spec.examples = {{"run --model demo-moe --from megatron:tp=2,ep=4,etp=1 --to vllm:tp=4 --verify",
                    "three refits in this process, with every byte compared"},
                   {"run --model hf --from fsdp:shard=2 --to vllm:tp=2 --transport shm --spawn "
                    "--trace trace.json",
                    "one process per rank, with the weights of the checkpoint hf; trace.json opens "
                    "in Perfetto"}};
  spec.command = [a] { return *a; };
  spec.check = [a](const std::set<std::string>& given) { return check_options(*a, given); };
  return spec;
}

}  // namespace reshard::cli
