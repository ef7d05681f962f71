// SPDX-License-Identifier: Apache-2.0
// Protects: what a file says of a cluster is what is simulated, and a wrong file is refused with
// its key.
#include "reshard/io/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace reshard {
namespace {

using ::testing::HasSubstr;

/// With a figure in every place.
ClusterSpec full_cluster() {
  ClusterSpec c;
  c.name = "a \"name\"";
  c.comment = "what it is";
  c.sources = {"first", "second"};
  c.hosts = 64;
  c.ranks_per_host = 8;
  c.direct = false;
  c.copies = {16, 2, 1.5e12, 2.0 / 3 * 1e13, 1e-7};
  c.nics = {4, 5e10, 5e-6, 1e10};
  c.nvlink = {72, 9e11, 2e-6};
  c.pcie_bytes_per_second = 6.4e10;
  c.fabric = {32, 1.5};
  c.messages = {1e-6, 1e-4, 0.5};
  return c;
}

TEST(ClusterFile, a_cluster_that_is_written_reads_back_as_it_was) {
  ClusterSpec one = full_cluster();
  one.hosts = 1;
  one.direct = one.one_process = true;
  ClusterSpec plain;
  plain.name = "x";
  for (const ClusterSpec& cluster : {full_cluster(), one, plain}) {
    const auto again = parse_cluster(cluster_text(cluster));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_TRUE(*again == cluster) << cluster_text(cluster);
  }
}

TEST(ClusterFile, what_a_file_leaves_out_has_no_limit_and_takes_no_time) {
  const auto cluster = parse_cluster(R"({"name": "x", "ranks_per_host": 2})");
  ASSERT_TRUE(cluster) << cluster.error().message;
  ClusterSpec plain;
  plain.name = "x";
  plain.ranks_per_host = 2;
  EXPECT_TRUE(*cluster == plain);
}

TEST(ClusterFile, errors_name_the_key_and_what_would_be_right) {
  const auto in = [](const std::string& members) {
    return R"({"name": "x", "ranks_per_host": 2, )" + members + "}";
  };
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"[]", "the file must be an object, is a list"},
      {"{}", "name must be a string of 1 to 512 characters, is missing"},
      {R"({"name": "x"})", "ranks_per_host must be a whole number from 1 to 1048576, is missing"},
      {R"({"name": "x", "ranks_per_host": 0})", "ranks_per_host must be a whole number"},
      {in(R"("rank_per_host": 1)"),
       "unknown key \"rank_per_host\" (did you mean 'ranks_per_host'?); known are name"},
      {in(R"("hosts": 1.5)"), "hosts must be a whole number from 1 to 1048576, is 1.5"},
      {in(R"("hosts": 99999999999999999999)"), "hosts must be a whole number"},
      {in(R"("direct": 1)"), "direct must be true or false, is 1"},
      {in(R"("one_process": true)"), "one_process needs hosts to be 1"},
      {in(R"("sources": "x")"), "sources must be a list"},
      {in(R"("sources": [7])"),
       "sources must be a list of strings of 1 to 512 characters, one is 7"},
      {in(R"("nics": 4)"), "the file: nics must be an object, is 4"},
      {in(R"("nics": {"rate": 4})"), "the file: nics: unknown key \"rate\""},
      {in(R"("nics": {"bytes_per_second": -1})"),
       "nics: bytes_per_second must be a number from 1 to 1000000000000000, is -1"},
      {in(R"("nics": {"bytes_per_second": 1e300})"), "bytes_per_second must be a number"},
      {in(R"("nics": {"bytes_per_second": 1e999})"), ""},
      {in(R"("nics": {"bytes_per_second": "50 GB"})"), "is \"50 GB\""},
      {in(R"("nics": {"latency_seconds": 3601})"), "from 0 to 3600, is 3601"},
      {in(R"("nvlink": {"bytes_per_second": 1e9})"), "nvlink: ranks must be a whole number"},
      {in(R"("copies": {"cores": 2, "cores_per_rank": 3})"),
       "copies: cores_per_rank must be a whole number from 1 to 2, is 3"},
      {in(R"("fabric": {"oversubscription": 0})"),
       "oversubscription must be a number from 1 to 1000"},
      {in(R"("messages": {"copies_within_host": null})"), "copies_within_host must be a number"},
      {in(R"("pcie": {"bytes_per_second": NaN})"), "byte"},
      {in(R"("name": "y")"), "name"},
      {R"({"name": ")" + std::string(600, 'x') + R"(", "ranks_per_host": 1})", "name must be"},
      {std::string(2 << 20, ' '), ""},
      {std::string(100, '[') + std::string(100, ']'), ""},
      {in(R"("nics": {"bytes_per_second": 1)"), "byte"}};
  for (const auto& [text, what] : cases) {
    const auto cluster = parse_cluster(text);
    ASSERT_FALSE(cluster.has_value()) << text.substr(0, 200);
    EXPECT_THAT(cluster.error().message, HasSubstr(what)) << text.substr(0, 200);
    EXPECT_EQ(cluster.error().message.find('\n'), std::string::npos);
  }
  EXPECT_THAT(read_cluster("/no/such/file").error().message, HasSubstr("/no/such/file"));
}

RC_GTEST_PROP(ClusterFile, a_damaged_file_is_refused_or_is_a_valid_cluster, ()) {
  std::string text = cluster_text(full_cluster());
  const auto changes = *rc::gen::inRange(1, 6);
  for (int i = 0; i < changes; ++i) {
    const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
    if (*rc::gen::arbitrary<bool>())
      text[at] = *rc::gen::elementOf(std::string("0123456789eE+-.\"{}[],: x"));
    else
      text.erase(at, *rc::gen::inRange<std::size_t>(1, 30));
  }
  const auto cluster = parse_cluster(text);
  if (!cluster) {
    RC_ASSERT(!cluster.error().message.empty());
    return;
  }
  RC_ASSERT(check_cluster(*cluster).has_value());
  const auto again = parse_cluster(cluster_text(*cluster));
  RC_ASSERT(again.has_value() && *again == *cluster);
}

}  // namespace
}  // namespace reshard
