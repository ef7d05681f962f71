// SPDX-License-Identifier: Apache-2.0
// Protects: when a process is killed its peers learn which one, and nothing of the group remains:
// no file, no mapping, no shared memory.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "reshard/memory/host_buffer.h"
#include "reshard/transport/rendezvous.h"
#include "reshard/transport/shm/shm_testutil.h"
#include "reshard/transport/testing/forwarding_control_testutil.h"

namespace reshard {
namespace {

/// The system resources of this process.
struct ReplicaMap {
  std::size_t files = 0, mappings = 0, shared = 0;
  friend bool operator==(const ReplicaMap&, const ReplicaMap&) = default;
};

ReplicaMap holdings() {
  ReplicaMap h;
  const auto count = [](const char* folder, const std::string& prefix) {
    std::size_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      n += entry.path().filename().string().starts_with(prefix) ? 1U : 0U;
    return n;
  };
  h.files = count("/proc/self/fd", "");
  // Tests of other libraries that run at the same time create files there.
  h.shared = count("/dev/shm", "reshard");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const bool ours = line.find("memfd:reshard") != std::string::npos;
    if (ours && line.find("(deleted)") != std::string::npos) ++h.mappings;
  }
  return h;
}

/// Rank 2 of 4 is killed before or while the others receive from it: it has sent one message and
/// announced another.
void kill_one(const char* ways, bool shared) {
  SCOPED_TRACE(ways);
  ProcessEvent receiving;
  constexpr int kVictim = 2;
  ProcessOptions options;
  options.doomed = {kVictim};
  const auto body = [&](RankEnds& me) {
    constexpr std::size_t kBytes = std::size_t{32} << 20;
    auto memory = *HostBuffer::allocate(kBytes, {.shared = shared});
    std::vector<Send> sends;
    std::vector<Recv> recvs;
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == me.rank().value()) continue;
      if (me.rank() == Rank{kVictim}) sends.push_back({Rank{peer}, MessageId{1}, memory.bytes()});
    }
    if (me.rank() == Rank{kVictim}) {
      auto event = me.transport->exchange(sends, {});
      receiving.wait(3);
      (void)(*event)->test();
      ::raise(SIGKILL);
    }
    recvs.push_back({Rank{kVictim}, MessageId{1}, memory.bytes()});
    recvs.push_back({Rank{kVictim}, MessageId{2}, memory.bytes().first(0)});
    receiving.happen();
    expect_error(step(*me.transport, {}, recvs, patient()), Code::aborted,
                 {"rank " + std::to_string(kVictim)});
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  };
  EXPECT_EQ(outcome(shm_processes(ways, options)(4, body)), "");
}

TEST(ShmDeath, the_peers_of_a_killed_process_learn_of_it_by_every_way) {
  EXPECT_EQ(outcome(finish_serving(patient())), "");  // Of tests before this one.
  const ReplicaMap before = holdings();
  for (int round = 0; round < 3; ++round) {
    kill_one("mapped,readv", true);
    kill_one("readv", false);
    kill_one("ring", false);
  }
  EXPECT_EQ(holdings(), before);
}

/// A control plane that never hears of a failure.
class Deaf final : public ForwardingControl {
 public:
  using ForwardingControl::ForwardingControl;
  Result<> status() const override { return {}; }
  std::vector<Rank> lost() const override { return {}; }
};

TEST(ShmDeath, the_wire_notices_a_death_that_nobody_tells) {
  ProcessEvent receiving;
  ProcessOptions options;
  options.doomed = {1};
  const auto body = [&](ControlPlane& control) {
    Deaf deaf(control);
    auto transport = shm::make_transport(deaf, {});
    ASSERT_TRUE(transport) << outcome(transport);
    if (control.rank() == Rank{1}) {
      receiving.wait();
      ::raise(SIGKILL);
    }
    Bytes memory(8);
    const Recv recv{Rank{1}, MessageId{1}, memory};
    receiving.happen();
    expect_error(step(**transport, {}, {&recv, 1}, Deadline::never()), Code::aborted,
                 {"rank 1 is gone"});
  };
  EXPECT_EQ(outcome(run_control_processes(2, body, options)), "");
}

TEST(ShmDeath, a_group_that_ends_leaves_nothing_in_its_processes) {
  const auto use = [](RankEnds& me) {
    auto memory = *HostBuffer::allocate(5 << 20, {.shared = true});
    const auto key = me.transport->share(memory.bytes());
    ASSERT_TRUE(key) << outcome(key);
    const auto keys = me.control->all_gather(*key, patient());
    ASSERT_TRUE(keys) << outcome(keys);
    const Rank peer{1 - me.rank().value()};
    const auto there = me.transport->open(peer, (*keys)[peer.index()]);
    ASSERT_TRUE(there) << outcome(there);
    Bytes room(5 << 20);
    const Send send{peer, MessageId{1}, memory.bytes()};
    const Recv recv{peer, MessageId{1}, room};
    EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  };
  // The file of the arena remains until the process ends.
  const auto warm = HostBuffer::allocate(100, {.shared = true});
  const ReplicaMap before = holdings();
  for (int round = 0; round < 3; ++round) EXPECT_EQ(outcome(shm_threads("mapped")(2, use)), "");
  EXPECT_EQ(holdings(), before);
}

}  // namespace
}  // namespace reshard
