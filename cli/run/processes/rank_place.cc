// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes/rank_place.h"

#include <fmt/format.h>

#include "cli/run/processes/mpi_rendezvous.h"
#include "reshard/base/hash.h"
#include "reshard/transport/group.h"

namespace reshard::cli {
namespace {

/// This process's index among those of its program.
struct LaunchedRank {
  int index = 0, count = 1;
  std::string launcher;
};

Result<LaunchedRank> local_place(const std::optional<Spawned>& spawned) {
  if (spawned) return LaunchedRank{spawned->index, spawned->count, "--spawn"};
  const auto by_launcher = RESHARD_TRY(launched());
  if (by_launcher) return LaunchedRank{by_launcher->rank, by_launcher->size, by_launcher->launcher};
  return LaunchedRank{};
}

Result<> check_count(const RunArguments& a, const LaunchedRank& local,
                     const RunArguments::Ranks& ranks) {
  const int wanted = ranks.last - ranks.first + 1;
  if (a.ranks && local.count != wanted)
    return fail(Code::invalid_argument,
                local.launcher.empty()
                    ? fmt::format("--ranks {}-{} are {} processes, but this is one; add --spawn or "
                                  "start it with mpirun -n {}",
                                  ranks.first, ranks.last, wanted, wanted)
                    : fmt::format("--ranks {}-{} are {} processes, but {} started {}", ranks.first,
                                  ranks.last, wanted, local.launcher, local.count));
  if (local.count >= wanted) return {};
  return fail(Code::invalid_argument,
              local.launcher.empty()
                  ? fmt::format("the layouts have ranks 0 to {}, but this is one process; add "
                                "--spawn, start it with mpirun -n {}, or give --rendezvous and "
                                "--ranks",
                                wanted - 1, wanted)
                  : fmt::format("the layouts have ranks 0 to {}, but {} started {} processes; "
                                "start {}",
                                wanted - 1, local.launcher, local.count, wanted));
}

}  // namespace

int world_of(const Planner& planner) {
  const auto ranks = planner.ranks().members();
  return ranks.empty() ? 1 : ranks.back().value() + 1;
}

Result<RunArguments::Ranks> ranks_of_program(const RunArguments& a, const Planner& planner) {
  const int last = world_of(planner) - 1;
  const RunArguments::Ranks ranks = a.ranks.value_or(RunArguments::Ranks{0, last});
  if (ranks.last > last)
    return fail(Code::invalid_argument, fmt::format("--ranks {}-{}: the layouts have ranks 0 to {}",
                                                    ranks.first, ranks.last, last));
  if (a.role == RunArguments::Role::any) return ranks;
  const bool is_source = a.role == RunArguments::Role::source;
  const ModelLayout& other = is_source ? planner.target() : planner.source();
  for (int r = ranks.first; r <= ranks.last; ++r)
    if (other.ranks().contains(Rank(r)))
      return fail(Code::invalid_argument,
                  fmt::format("--role {}: rank {} belongs to the {}, {}, whose ranks are {}; "
                              "offset= moves a layout to other ranks",
                              is_source ? "source" : "target", r, is_source ? "target" : "source",
                              other.name(), to_string(other.ranks())));
  return ranks;
}

Result<RankPlace> find_rank_place(const RunArguments& a, const Planner& planner,
                                  std::optional<Spawned> spawned) {
  const LaunchedRank local = RESHARD_TRY(local_place(spawned));
  const RunArguments::Ranks ranks = RESHARD_TRY(ranks_of_program(a, planner));
  RESHARD_TRY(check_count(a, local, ranks));
  RankPlace place;
  place.join.rank = Rank(ranks.first + local.index);
  // Processes beyond the layouts' ranks are idle ranks.
  place.join.size = a.ranks ? world_of(planner) : local.count;
  place.join.job = a.job;
  place.join.agreement = fmt::format("plan {}", hex(planner.digest()));
  place.first = Rank(ranks.first);
  place.program = local.count;
  if (!a.secret_file.empty()) place.join.secret = RESHARD_TRY(Secret::from_file(a.secret_file));
  place.join.url = a.rendezvous;
  if (a.rendezvous.empty() && spawned) place.join.url = spawned->rendezvous;
  if (place.join.url.empty()) {
    if (local.launcher.empty() || local.launcher == "torchrun")
      return fail(Code::invalid_argument,
                  fmt::format("{} give --rendezvous, so that processes meet",
                              local.launcher.empty() ? "this is one process: add --spawn, or"
                                                     : "torchrun does not say where to meet:"));
    MpiRendezvous meeting =
        RESHARD_TRY(rendezvous_by_mpi(local.index == 0, a.interface, local.launcher));
    place.join.url = std::move(meeting.url);
    place.join.secret = std::move(meeting.secret);
    place.listener = std::move(meeting.listener);
    place.join.listener = place.listener.get();
  }
  place.spawned = std::move(spawned);
  place.join.deadline = Deadline::after(std::chrono::duration<double>(a.deadline_seconds));
  return place;
}

bool is_first_of_launch() {
  const auto by_launcher = launched();
  return !by_launcher || !*by_launcher || (*by_launcher)->rank == 0;
}

}  // namespace reshard::cli
