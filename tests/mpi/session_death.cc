// SPDX-License-Identifier: Apache-2.0
// A process of test_session_deaths.py: refits a quantised target to version 1, and to version 2, in
// which one process is killed in a phase; then says what it was told, what its target holds, and
// that it got away.
//
//   mpirun -n 8 ... reshard_mpi_session_death FOLDER VICTIM PHASE WAY
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "reshard/refit/session/quantised_memory_testutil.h"
#include "reshard/transport/group.h"

namespace reshard::quantised {
namespace {

struct Arguments {
  std::string folder;
  int victim = 0;
  std::string phase;
  Way way;
};

/// Prints a line in one write, so that lines of several processes do not mix.
void say(int rank, const std::string& what) {
  const std::string line = "rank " + std::to_string(rank) + " " + what + "\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

/// The error of version 2, which is never finished.
Result<> refit_both(const Arguments& arguments, ProcessGroup& group, const Memory& memory,
                    PublishedVersion& published, const Job& first, const Job& second) {
  const Rank me = group.transport->rank();
  SessionOptions options = options_of(arguments.way);
  const bool dies = me == Rank(arguments.victim);
  options.on_phase = [&, refits = 0](SessionPhase now) mutable -> Result<> {
    refits += now == SessionPhase::begin ? 1 : 0;
    if (dies && refits == 2 && name(now) == arguments.phase) raise(SIGKILL);
    return {};
  };
  auto session =
      RESHARD_TRY(Session::prepare(*group.transport, *group.control, memory.source(first),
                                   memory.target(first, published), options));
  copy_to(*first.source.stored, memory.from, me);
  RESHARD_TRY(session.refit(1));
  copy_to(*second.source.stored, memory.from, me);
  RESHARD_TRY(session.refit(2));
  return {};
}

Result<> live(const Arguments& arguments) {
  const auto place = RESHARD_TRY(launched());
  if (!place) return fail(Code::invalid_argument, "start it with mpirun");
  Job first(small_case()), second(small_case());
  first.fill(1);
  second.fill(2);
  RendezvousOptions join_as;
  join_as.url = "file://" + arguments.folder;
  join_as.rank = Rank{place->rank};
  join_as.size = place->size;
  ProcessGroup group = RESHARD_TRY(join_group("mpi", join_as));
  const Memory memory(first, Rank(place->rank));
  PublishedVersion published;
  const Result<> refitted = refit_both(arguments, group, memory, published, first, second);
  say(place->rank, "was told: " + (refitted ? "nothing"
                                            : std::string(name(refitted.error().code)) + ": " +
                                                  refitted.error().message));
  const TargetVersion held = published.target_version();
  const Index wrong = memory.wrong(held, held.version == 2 ? second : first);
  if (memory.has_target())
    say(place->rank, "holds " + std::string(name(held.state)) + " " + std::to_string(held.version) +
                         " with " + std::to_string(wrong) + " wrong tensors");
  group.transport->close();
  say(place->rank, "got away");
  if (place->rank == 0) (void)finish_serving(Deadline::after(std::chrono::seconds(10)));
  return refitted;
}

}  // namespace
}  // namespace reshard::quantised

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  reshard::quantised::Arguments arguments{argv[1], std::atoi(argv[2]), argv[3], {}};
  for (const auto& way : reshard::quantised::fault_ways())
    if (way.name == argv[4]) arguments.way = way;
  if (arguments.way.name.empty()) return 2;
  return reshard::quantised::live(arguments) ? 0 : 3;
}
