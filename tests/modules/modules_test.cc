// SPDX-License-Identifier: Apache-2.0
// Protects: an unusable module gives an error and has no other effect; a usable one is used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "reshard/transport/group.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/module.h"
#include "reshard/transport/registry.h"

namespace reshard {
namespace {

using testing::HasSubstr;

void use_modules_of(const std::string& folder) {
  setenv("RESHARD_MODULES", (std::string(ODD_MODULES "/") + folder).c_str(), 1);
}

std::string refusal(const std::string& folder) {
  use_modules_of(folder);
  const auto module = load_module("gloo");
  EXPECT_FALSE(module);
  return module ? "" : std::string(name(module.error().code)) + ": " + module.error().message;
}

TEST(Modules, one_of_other_sources_is_refused) {
  const std::string said = refusal("other_abi");
  EXPECT_THAT(said, HasSubstr("unsupported: "));
  EXPECT_THAT(said, HasSubstr("other_abi/reshard_transport_gloo.so"));
  EXPECT_THAT(said, HasSubstr("this program has " + std::to_string(kModuleAbi)));
}

TEST(Modules, one_without_the_entry_is_refused) {
  EXPECT_THAT(refusal("no_entry"), HasSubstr("has no symbol reshard_transport_module"));
}

TEST(Modules, one_whose_library_is_missing_gives_the_systems_words) {
  const std::string said = refusal("no_library");
  EXPECT_THAT(said, HasSubstr("libodd_absent_library.so: cannot open shared object file"));
}

TEST(Modules, the_table_says_why_a_module_is_not_available) {
  use_modules_of("no_library");
  const auto row = find_transport("gloo");
  ASSERT_TRUE(row);
  EXPECT_FALSE(row->available);
  EXPECT_THAT(row->reason, HasSubstr("libodd_absent_library.so"));
}

TEST(Modules, a_name_that_no_module_has_is_refused) {
  EXPECT_FALSE(load_module("inproc"));
  EXPECT_FALSE(load_module("../gloo"));
  EXPECT_FALSE(load_module(""));
}

TEST(Modules, a_whole_one_is_asked_for_its_version_and_reason) {
  use_modules_of("whole");
  unsetenv("PIGEONS_FLY");
  auto row = find_transport("gloo");
  ASSERT_TRUE(row);
  EXPECT_TRUE(row->built);
  EXPECT_FALSE(row->available);
  EXPECT_EQ(row->version, "Pigeon 3.2");
  EXPECT_EQ(row->reason, "no pigeon is free");
  EXPECT_EQ(row->gpu_reason, "no pigeon is free");
  setenv("PIGEONS_FLY", "1", 1);
  row = find_transport("gloo");
  ASSERT_TRUE(row);
  EXPECT_TRUE(row->available);
  EXPECT_EQ(row->reason, "");
  EXPECT_EQ(row->gpu_reason, "") << "it does not say that it moves host memory";
}

TEST(Modules, make_transport_gives_what_the_module_says) {
  use_modules_of("whole");
  const auto control = InprocGroup::create(1)->control(Rank{0});
  ASSERT_TRUE(control);
  unsetenv("PIGEONS_FLY");
  const auto off = make_transport("gloo", **control);
  ASSERT_FALSE(off);
  EXPECT_EQ(off.error().code, Code::unsupported);
  EXPECT_EQ(off.error().message, "transport gloo: no pigeon is free");
  setenv("PIGEONS_FLY", "1", 1);
  const auto lost = make_transport("gloo", **control);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().message, "rank 0 lost its pigeon");
}

TEST(Modules, make_transport_knows_what_it_cannot_make) {
  const auto control = InprocGroup::create(1)->control(Rank{0});
  ASSERT_TRUE(control);
  const auto said = [&](std::string_view transport) {
    const auto made = make_transport(transport, **control);
    return made ? "" : made.error().message;
  };
  EXPECT_THAT(said("inproc"), HasSubstr("InprocGroup"));
  EXPECT_THAT(said("pigeon"), HasSubstr("known: inproc, shm, mpi, gloo, ucx, nccl, nvshmem"));
}

}  // namespace
}  // namespace reshard
