// SPDX-License-Identifier: Apache-2.0
// Protects: what a process finds out about NCCL and says of it, and the shape of what it passes.
#include "reshard/gpu_transport/nccl/library.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>

#include "reshard/gpu_transport/nccl/nccl_model_testutil.h"
#include "reshard/gpu_transport/nccl/transport.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard::nccl {
namespace {

TEST(NcclLibrary, has_one_answer_per_process_which_says_where_it_looked) {
  const auto first = load_nccl();
  const auto again = load_nccl();
  ASSERT_EQ(first.has_value(), again.has_value());
  if (first) {
    EXPECT_EQ(*first, *again);
    EXPECT_GE((*first)->version, kOldestVersion);
    EXPECT_EQ(library_version(), name_of_version((*first)->version));
    return;
  }
  EXPECT_EQ(first.error().code, Code::unsupported);
  EXPECT_NE(first.error().message.find("libnccl"), std::string::npos) << first.error().message;
  EXPECT_EQ(unavailable_reason(), first.error().message);
  EXPECT_EQ(library_version(), "");
}

TEST(NcclLibrary, names_versions_as_nccl_counts_them) {
  EXPECT_EQ(name_of_version(22703), "NCCL 2.27.3");
  EXPECT_EQ(name_of_version(21800), "NCCL 2.18.0");
}

TEST(NcclLibrary, passes_a_config_with_the_offsets_of_its_header) {
  // Of ncclConfig_t in nccl.h of 2.19.3, 2.27.3 and 2.32.3.
  EXPECT_EQ(offsetof(Config, magic), 8U);
  EXPECT_EQ(offsetof(Config, version), 12U);
  EXPECT_EQ(offsetof(Config, blocking), 16U);
  EXPECT_EQ(offsetof(Config, max_ctas), 28U);
  EXPECT_EQ(offsetof(Config, net_name), 32U);
  EXPECT_EQ(offsetof(Config, split_share), 40U);
  EXPECT_EQ(offsetof(Config, later_member), 44U);
  EXPECT_EQ(sizeof(UniqueId), 128U);
  EXPECT_EQ(Config().later_member, Config::kUndefined);
}

TEST(NcclLibrary, tells_work_in_progress_from_errors_and_refusals) {
  const Nccl& nccl = model_nccl();
  EXPECT_TRUE(check(nccl, kSuccess, nullptr, "a call"));
  EXPECT_TRUE(check(nccl, kInProgress, nullptr, "a call"));
  const auto refused = check(nccl, kInvalidUsage, nullptr, "a call");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_EQ(refused.error().message, "nccl: a call: modelled error");
  EXPECT_EQ(check(nccl, 6, nullptr, "a call").error().code, Code::aborted);
}

TEST(NcclLibrary, needs_a_gpu_of_the_caller) {
  auto group = *InprocGroup::create(1);
  const auto control = *group.control(Rank{0});
  const auto made = make_transport(*control, TransportOptions{});
  ASSERT_FALSE(made);
  const std::string why = made.error().message;
  EXPECT_TRUE(why.find("no NCCL") != std::string::npos || why.find("GPU") != std::string::npos)
      << why;
}

}  // namespace
}  // namespace reshard::nccl
