// SPDX-License-Identifier: Apache-2.0
// Protects: shm keeps the promises of every transport by each way that a system may allow.
#include "reshard/transport/shm.h"

#include <cstdlib>

#include "reshard/memory/host_buffer.h"
#include "reshard/transport/conformance_testutil.h"
#include "reshard/transport/inproc.h"

namespace reshard {
namespace {

/// Ranks as threads, each with a mailbox of its own, where only `ways` are allowed.
auto threads_with(const char* ways) {
  return [ways](int n, const RankBody& body) -> Result<> {
    InprocGroup group = RESHARD_TRY(InprocGroup::create(n));
    setenv("RESHARD_SHM", ways, 1);
    const Result<> outcome = run_ranks(n, [&](Rank rank) -> Result<> {
      RankEnds ends;
      ends.control = RESHARD_TRY(group.control(rank));
      ends.transport = RESHARD_TRY(make_shm(*ends.control, {}));
      body(ends);
      return {};
    });
    unsetenv("RESHARD_SHM");
    return outcome;
  };
}

const TransportUnderTest kReadv{"shm", threads_with("readv")};
const TransportUnderTest kMapped{"shm", threads_with("mapped,passed")};
const TransportUnderTest kRing{"shm", threads_with("ring")};
RESHARD_TEST_TRANSPORT(ShmReadv, kReadv);
RESHARD_TEST_TRANSPORT(ShmMapped, kMapped);
RESHARD_TEST_TRANSPORT(ShmRing, kRing);

}  // namespace
}  // namespace reshard
