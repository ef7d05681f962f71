// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "reshard/base/log/log.h"
#include "reshard/transport/built_modules.h"
#include "reshard/transport/module.h"
#include "reshard/transport/registry.h"
#include "reshard/transport/shm/host_memory.h"
#include "reshard/transport/shm/shm.h"

namespace reshard {
namespace {

/// Why a transport without a module cannot be made this way.
tl::unexpected<Error> cannot_make(std::string_view name) {
  if (name == "inproc") {
    return fail(Code::unsupported,
                "transport inproc: its ranks are threads of one process, made by InprocGroup; "
                "use another transport between processes");
  }
  const std::optional<TransportStatus> row = find_transport(name);
  if (row) return fail(Code::unsupported, fmt::format("transport {}: {}", name, row->reason));
  return fail(Code::invalid_argument, fmt::format("transport {}: no such transport; known: {}",
                                                  name, fmt::join(transport_names(), ", ")));
}

bool has_module(std::string_view name) {
  return std::ranges::any_of(built_modules(),
                             [&](const BuiltModule& m) { return m.transport == name; });
}

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
};

// The first match counts: mpirun may itself run under Slurm, and a script may run mpirun with
// torchrun's variables set. Slurm sets SLURM_PROCID for the batch script, too, where it means
// nothing; only srun sets the variable of the step.
constexpr Launcher kLaunchers[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"torchrun", "RANK", "WORLD_SIZE"},
};

Result<int> number(const char* variable, const char* text) {
  int value = -1;
  const char* end = text + std::strlen(text);
  const auto [stop, failed] = std::from_chars(text, end, value);
  if (failed != std::errc() || stop != end || value < 0) {
    return fail(Code::invalid_argument,
                fmt::format("environment: {}={} is not a number of ranks", variable, text));
  }
  return value;
}

}  // namespace

namespace {

Result<std::unique_ptr<Transport>> make_any_transport(std::string_view name, ControlPlane& control,
                                                      const TransportOptions& options) {
  if (name == "shm") return shm::make_transport(control, options);
  if (!has_module(name)) return cannot_make(name);
  const std::string where = fmt::format("transport {}", name);
  Result<const TransportModule*> module = load_module(name);
  if (!module) return tl::unexpected(std::move(module).error().in(where));
  if (std::string reason = (*module)->reason(); !reason.empty())
    return tl::unexpected(Error{Code::unsupported, std::move(reason)}.in(where));
  std::unique_ptr<Transport> made = RESHARD_TRY((*module)->make(control, options));
  if (!(*module)->host_memory) return made;
  return shm::with_direct_access(std::move(made), control, options);
}

/// "direct memory, messages"
std::string text_of(const Capabilities& can) {
  std::vector<std::string_view> words;
  if (can.direct) words.push_back("direct access to memory");
  if (can.registers) words.push_back("registered memory");
  if (can.message) words.push_back(can.gpu_messages ? "messages of GPUs" : "messages");
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

Result<std::unique_ptr<Transport>> make_transport(std::string_view name, ControlPlane& control,
                                                  const TransportOptions& options) {
  auto made = RESHARD_TRY(make_any_transport(name, control, options));
  log_event(LogLevel::info, "transport", control.rank().value(), [&] {
    return fmt::format("joined a group of {} ranks by {}: {}", control.size(), name,
                       text_of(made->capabilities()));
  });
  return made;
}

Result<ProcessGroup> join_group(std::string_view transport, const RendezvousOptions& rendezvous,
                                const TransportOptions& options) {
  ProcessGroup group;
  group.control = RESHARD_TRY(join(rendezvous));
  group.transport = RESHARD_TRY(make_transport(transport, *group.control, options));
  return group;
}

Result<std::optional<Launched>> launched() {
  for (const Launcher& l : kLaunchers) {
    const char* rank = std::getenv(l.rank);
    const char* size = std::getenv(l.size);
    const bool batch_script = std::string_view(l.name) == "Slurm" && size == nullptr;
    if ((rank == nullptr && size == nullptr) || batch_script) continue;
    if (rank == nullptr || size == nullptr) {
      return fail(Code::invalid_argument,
                  fmt::format("environment: {} is set but {} is not; {} sets both",
                              rank != nullptr ? l.rank : l.size, rank != nullptr ? l.size : l.rank,
                              l.name));
    }
    Launched out{RESHARD_TRY(number(l.rank, rank)), RESHARD_TRY(number(l.size, size)), l.name};
    if (out.rank >= out.size) {
      return fail(Code::invalid_argument,
                  fmt::format("environment: {}={} but {}={}", l.rank, out.rank, l.size, out.size));
    }
    return out;
  }
  return std::optional<Launched>();
}

}  // namespace reshard
