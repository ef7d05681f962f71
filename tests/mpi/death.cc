// SPDX-License-Identifier: Apache-2.0
// A process of test_deaths.py: sends 32 MiB around a ring for ever, until one of them is killed in
// the middle of a message; then prints the error and how it left.
//
//   mpirun ... reshard_mpi_death FOLDER VICTIM
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "reshard/transport/group.h"

namespace reshard {
namespace {

constexpr std::size_t kBytes = std::size_t{32} << 20;
constexpr std::uint64_t kLastRound = 3;

std::string text(const Result<>& result) {
  return result ? "nothing"
                : std::string(name(result.error().code)) + ": " + result.error().message;
}

Result<> step(ProcessGroup& group, std::uint64_t round, bool dies) {
  const int rank = group.transport->rank().value(), size = group.transport->size();
  std::vector<std::byte> out(kBytes), in(kBytes);
  const Send send{Rank{(rank + 1) % size}, MessageId{round}, out};
  const Recv recv{Rank{(rank + size - 1) % size}, MessageId{round}, in};
  auto event = RESHARD_TRY(group.transport->exchange({&send, 1}, {&recv, 1}));
  if (dies) {
    for (int i = 0; i < 50; ++i) (void)event->test();
    raise(SIGKILL);
  }
  return event->wait(Deadline::after(std::chrono::seconds(60)));
}

Result<> ring(const std::string& folder, int victim) {
  const auto place = RESHARD_TRY(launched());
  if (!place) return fail(Code::invalid_argument, "start it with mpirun");
  RendezvousOptions join_as;
  join_as.url = "file://" + folder;
  join_as.rank = Rank{place->rank};
  join_as.size = place->size;
  ProcessGroup group = RESHARD_TRY(join_group("mpi", join_as));
  Result<> told;
  for (std::uint64_t round = 0; told; ++round)
    told = step(group, round, round == kLastRound && place->rank == victim);
  // One write, so that lines of several processes do not mix.
  const std::string line =
      "rank " + std::to_string(place->rank) + " was told: " + text(told) + "\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
  group.control->abort(told.error().message);
  (void)group.control->quiesce(Deadline::after(std::chrono::seconds(5)));
  group.transport->close();
  const std::string left = "rank " + std::to_string(place->rank) + " got away\n";
  std::fputs(left.c_str(), stdout);
  std::fflush(stdout);
  if (place->rank == 0) (void)finish_serving(Deadline::after(std::chrono::seconds(10)));
  return told;
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const reshard::Result<> result = reshard::ring(argv[1], std::atoi(argv[2]));
  return result ? 0 : 3;
}
