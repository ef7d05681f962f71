// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "reshard/transport/group.h"

namespace reshard {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
};

// The first that fits counts: mpirun may itself run under Slurm, and a script may run mpirun under
// torchrun's variables. Slurm sets SLURM_PROCID also for the batch script, where it means nothing;
// the step's variable is only srun's.
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
