// SPDX-License-Identifier: Apache-2.0
// Protects: all ranks find the same places from the names of their hosts, or none.
#include "reshard/exec/routes/relay_places.h"

#include <gtest/gtest.h>

#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {
namespace {

using Names = std::vector<std::string>;
using Numbers = std::vector<std::int32_t>;

/// Expects these numbers of hosts on each rank, where rank r is on host names[r]; empty: none.
void expect_places(const Names& names, const Numbers& expected) {
  const auto ended =
      run_group_as_threads<InprocGroup>(static_cast<int>(names.size()), [&](RankEnds& ends) {
        const auto found = gather_places(names[ends.rank().index()], *ends.control, patient());
        ASSERT_EQ(outcome(found), "");
        const RankPlaces none;
        const RankPlaces& places = *found == nullptr ? none : (*found)->places;
        EXPECT_EQ(places.domain, expected);
        EXPECT_EQ(places.nic, expected);
      });
  EXPECT_EQ(outcome(ended), "");
}

TEST(RelayPlaces, are_the_hosts_in_the_order_of_their_ranks) {
  expect_places({"b", "a", "b", "c"}, {0, 1, 0, 2});
  expect_places({std::string(kMaxHostName, 'x'), "x"}, {0, 1});
}

TEST(RelayPlaces, are_none_on_one_host_or_if_a_rank_cannot_relay) {
  expect_places({"a", "a", "a"}, {});
  expect_places({"a", "", "c"}, {});
}

}  // namespace
}  // namespace reshard
