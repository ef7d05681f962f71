// SPDX-License-Identifier: Apache-2.0
// Protects: whatever fails in a session, each rank waits once for its peers to let go of its
// memory, so that a failed call ends soon after its deadline.
#include <gtest/gtest.h>

#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/forwarding_control_testutil.h"

namespace reshard {
namespace {

/// Fails one collective call, and counts those that end the group.
class CountedControl final : public ForwardingControl {
 public:
  using ForwardingControl::ForwardingControl;

  Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine,
                                                         Deadline deadline) override {
    RESHARD_TRY(call());
    return ForwardingControl::all_gather(mine, deadline);
  }
  Result<> all_gather_into(std::span<const std::byte> mine, std::span<std::byte> all,
                           Deadline deadline) override {
    RESHARD_TRY(call());
    return ForwardingControl::all_gather_into(mine, all, deadline);
  }
  Result<> barrier(Deadline deadline) override {
    RESHARD_TRY(call());
    return ForwardingControl::barrier(deadline);
  }
  Result<> quiesce(Deadline deadline) override {
    ++quiesced;
    return ForwardingControl::quiesce(deadline);
  }

  int fails_at = -1;  ///< after so many calls; -1: never.
  int calls = 0, quiesced = 0;

 private:
  Result<> call() {
    if (calls++ == fails_at) return fail(Code::deadline, "a deadline passed");
    return {};
  }
};

/// Fails call number `n` of rank 1 in a refit, or in a verification after it. False if the call has
/// fewer.
bool fail_call(int n, RefitPath path, bool verifies) {
  const SessionLayouts job(tiny_moe(), "megatron:tp=2", "vllm:tp=2,offset=2", 4);
  bool failed = false;
  const auto ended = run_group_as_threads<InprocGroup>(job.ranks, [&](RankEnds& ends) {
    CountedControl control(*ends.control);
    const SessionMemory memory(job, ends.rank());
    auto session =
        Session::prepare(*ends.transport, control, memory.source_side(), memory.target_side(),
                         session_options(Buffering::in_place, path, VerifyMode::always));
    ASSERT_EQ(outcome(session), "");
    if (verifies) {
      ASSERT_EQ(outcome(session->refit(1)), "");
    }
    control.calls = 0;
    if (ends.rank() == Rank(1)) control.fails_at = n;
    Result<> done;
    if (verifies) {
      done = session->verify();
    } else if (auto refitted = session->refit(2); !refitted) {
      done = tl::unexpected(refitted.error());
    }
    if (ends.rank() == Rank(1)) failed = !done;
    EXPECT_EQ(control.quiesced, done ? 0 : 1) << "call " << n << ": " << outcome(done);
    if (!done) {
      EXPECT_EQ(done.error().message.find("may still be in use"), std::string::npos)
          << done.error().message;
    } else {
      ends.control->quiesce(patient());
    }
  });
  EXPECT_EQ(outcome(ended), "");
  return failed;
}

TEST(SessionEnds, wait_once_for_peers_whichever_call_fails) {
  for (const bool verifies : {false, true})
    for (const RefitPath path : {RefitPath::direct, RefitPath::message}) {
      int n = 0;
      while (fail_call(n, path, verifies)) ++n;
      EXPECT_GT(n, verifies ? 0 : 2);
    }
}

}  // namespace
}  // namespace reshard
