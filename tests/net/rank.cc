// SPDX-License-Identifier: Apache-2.0
// One rank of a group, for tests that start it in a network of its own:
//
//   net_rank URL RANK SIZE SECRET_FILE talk    joins, agrees with the others, leaves
//   net_rank URL RANK SIZE SECRET_FILE wait    joins, and waits for a call that never comes
//
// Prints "joined" and then the outcome, one line each.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "reshard/transport/rendezvous.h"

namespace {

using namespace reshard;

constexpr std::chrono::seconds kPatience{60};

Result<> talk(ControlPlane& me) {
  const std::string mine = "rank " + std::to_string(me.rank().value());
  for (int round = 0; round < 10; ++round) {
    const auto all =
        RESHARD_TRY(me.all_gather(std::as_bytes(std::span(mine)), Deadline::after(kPatience)));
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::string theirs(reinterpret_cast<const char*>(all[r].data()), all[r].size());
      if (theirs != "rank " + std::to_string(r)) return fail(Code::corrupt, "got " + theirs);
    }
  }
  RESHARD_TRY(me.barrier(Deadline::after(kPatience)));
  return me.quiesce(Deadline::after(kPatience));
}

/// A call that the last rank never makes.
Result<> wait(ControlPlane& me) {
  if (me.rank().value() != me.size() - 1) return me.barrier(Deadline::after(kPatience));
  while (me.status()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return me.status();
}

Result<> run(char** arguments) {
  RendezvousOptions as;
  as.url = arguments[1];
  as.rank = Rank{std::atoi(arguments[2])};
  as.size = std::atoi(arguments[3]);
  as.secret = RESHARD_TRY(Secret::from_file(arguments[4]));
  as.deadline = Deadline::after(kPatience);
  const auto me = RESHARD_TRY(join(as));
  std::puts("joined");
  std::fflush(stdout);
  return std::string_view(arguments[5]) == "talk" ? talk(*me) : wait(*me);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  const auto outcome = run(arguments);
  std::puts(outcome ? "done" : outcome.error().message.c_str());
  (void)finish_serving(Deadline::after(std::chrono::seconds(5)));
  return outcome ? 0 : 1;
}
