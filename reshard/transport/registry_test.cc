// SPDX-License-Identifier: Apache-2.0
// Protects: the table describes this build correctly, and explains what is missing.
#include "reshard/transport/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reshard/transport/inproc/inproc.h"

namespace reshard {
namespace {

TEST(Registry, lists_every_transport_once) {
  std::vector<std::string> names;
  for (const TransportStatus& t : transports()) names.emplace_back(t.name);
  EXPECT_THAT(names,
              testing::ElementsAre("inproc", "shm", "mpi", "gloo", "ucx", "nccl", "nvshmem"));
  EXPECT_THAT(transport_names(), testing::ElementsAreArray(names));
}

TEST(Registry, a_transport_is_available_or_says_why_not) {
  for (const TransportStatus& t : transports()) {
    EXPECT_NE(t.available, !t.reason.empty()) << t.name;
    EXPECT_TRUE(t.built || !t.available) << t.name;
    EXPECT_TRUE(t.built || t.version.empty()) << t.name;
    EXPECT_TRUE(!t.available || !t.version.empty()) << t.name;
    EXPECT_FALSE(t.purpose.empty()) << t.name;
    EXPECT_TRUE(t.available || !t.gpu_reason.empty()) << t.name;
  }
}

TEST(Registry, a_transport_of_host_memory_says_that_it_moves_no_other) {
  for (const TransportStatus& t : transports()) {
    if (!t.available || (t.name != "inproc" && t.name != "shm" && t.name != "gloo")) continue;
    EXPECT_EQ(t.gpu_reason, "moves host memory only") << t.name;
  }
}

TEST(Registry, rows_are_found_by_the_name_that_the_transport_gives_itself) {
  auto transport = InprocGroup::create(1)->transport(Rank{0});
  ASSERT_TRUE(transport);
  const std::optional<TransportStatus> row = find_transport((*transport)->name());
  ASSERT_TRUE(row);
  EXPECT_TRUE(row->available);
  EXPECT_FALSE(find_transport("carrier pigeon"));
}

}  // namespace
}  // namespace reshard
