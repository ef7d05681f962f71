// SPDX-License-Identifier: Apache-2.0
// Protects: what is written is Chrome's trace event format, whatever the names are.
#include "reshard/trace/chrome_trace.h"

#include <gtest/gtest.h>

#include "reshard/trace/json_text.h"
#include "reshard/trace/trace_testutil.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::trace {
namespace {

using Kind = TraceEvent::Kind;

std::string json_of(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(ChromeTrace, has_slices_threads_counters_and_arrows) {
  GroupTrace trace;
  trace.version = 3;
  trace.clock_error_ns = 1500;
  trace.ranks.push_back(rank_trace(0, {event_of(Kind::send, 1, 3, 4000, 1, 8)}));
  trace.ranks.push_back(rank_trace(1, {event_of(Kind::receive, 2, 4, 4000, 0, 8)}));
  for (RankTrace& rank : trace.ranks) rank.workers = 1;
  const auto names = [](int rank, const std::string& messages) {
    const std::string pid = "{\"ph\": \"M\", \"pid\": " + std::to_string(rank);
    return pid + ", \"tid\": 0, \"name\": \"process_name\", \"args\": {\"name\": \"rank " +
           std::to_string(rank) + " on host" + std::to_string(rank) + "\"}},\n" + pid +
           ", \"tid\": 100000, \"name\": \"thread_name\", \"args\": {\"name\": \"phases\"}},\n" +
           pid + ", \"tid\": 0, \"name\": \"thread_name\", \"args\": {\"name\": \"worker 0\"}},\n" +
           pid + ", \"tid\": 100001, \"name\": \"thread_name\", \"args\": {\"name\": \"" +
           messages + "\"}},\n";
  };
  const std::string args =
      "\"args\": {\"run\": 0, \"step\": 0, \"bytes\": 4000, \"gb_per_s\": 2.000, ";
  EXPECT_EQ(
      chrome_trace(trace),
      "{\"displayTimeUnit\": \"ms\",\n\"otherData\": {\"version\": 3, \"clock_error_us\": 1.500, "
      "\"dropped_events\": 0},\n\"traceEvents\": [\n" +
          names(0, "send to rank 1") +
          "{\"ph\": \"X\", \"pid\": 0, \"tid\": 100001, \"ts\": 0.000, \"dur\": 2.000, \"cat\": "
          "\"message\", \"name\": \"send to 1\", " +
          args + "\"peer\": 1, \"message\": 8}},\n" +
          "{\"ph\": \"C\", \"pid\": 0, \"ts\": 0.000, \"name\": \"bytes in flight\", \"args\": "
          "{\"bytes\": 4000}},\n"
          "{\"ph\": \"C\", \"pid\": 0, \"ts\": 2.000, \"name\": \"bytes in flight\", \"args\": "
          "{\"bytes\": 0}},\n" +
          names(1, "receive from rank 0") +
          "{\"ph\": \"X\", \"pid\": 1, \"tid\": 100001, \"ts\": 1.000, \"dur\": 2.000, \"cat\": "
          "\"message\", \"name\": \"receive from 0\", " +
          args + "\"peer\": 0, \"message\": 8}},\n" +
          "{\"ph\": \"C\", \"pid\": 1, \"ts\": 1.000, \"name\": \"bytes in flight\", \"args\": "
          "{\"bytes\": 4000}},\n"
          "{\"ph\": \"C\", \"pid\": 1, \"ts\": 3.000, \"name\": \"bytes in flight\", \"args\": "
          "{\"bytes\": 0}},\n"
          "{\"ph\": \"s\", \"pid\": 0, \"tid\": 100001, \"ts\": 0.000, \"id\": 1, \"cat\": "
          "\"message\", \"name\": \"message\"},\n"
          "{\"ph\": \"f\", \"pid\": 1, \"tid\": 100001, \"ts\": 2.999, \"id\": 1, \"cat\": "
          "\"message\", \"name\": \"message\", \"bp\": \"e\"}\n]}\n");
}

TEST(ChromeTrace, puts_messages_that_overlap_on_different_threads) {
  const std::string text = chrome_trace(three_ranks());
  std::size_t threads = 0;
  for (std::size_t at = 0; (at = text.find("\"send to rank 1\"", at)) != std::string::npos; ++at)
    ++threads;
  EXPECT_EQ(threads, 2U);
}

TEST(ChromeTrace, says_what_a_tile_does_and_reads) {
  GroupTrace trace;
  trace.ranks.push_back(rank_trace(
      0,
      {event_of(Kind::tile, 0, 1, 100), event_of(Kind::read, 0, 1, 60, 2),
       event_of(Kind::read, 0, 1, 40, 3), event_of(Kind::wait, 1, 2), event_of(Kind::tile, 2, 2)}));
  trace.ranks[0].names = {"", "a\"b\\c", "messages"};
  trace.ranks[0].events[0].name = 1;
  trace.ranks[0].events[0].ops = TraceEvent::kUnpacks | 1 | 1 << 5;
  trace.ranks[0].events[3].name = 2;
  trace.ranks[0].events[4].unfinished = trace.ranks[0].events[4].verifying = true;
  const std::string text = chrome_trace(trace);
  EXPECT_NE(
      text.find("\"cat\": \"tile\", \"name\": \"unpack+copy+quantise\", \"args\": {\"run\": 0, "
                "\"step\": 0, \"bytes\": 100, \"gb_per_s\": 0.100, \"tensor\": "
                "\"a\\\"b\\\\c\", \"reads\": [{\"from\": 2, \"bytes\": 60}, {\"from\": 3, "
                "\"bytes\": 40}]}}"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("\"name\": \"wait for messages\""), std::string::npos);
  EXPECT_NE(text.find("\"bytes\": 0, \"verifying\": true, \"unfinished\": true}}"),
            std::string::npos);
}

TEST(ChromeTrace, of_nothing_has_no_events) {
  EXPECT_NE(chrome_trace({}).find("\"traceEvents\": [\n]}"), std::string::npos);
}

TEST(JsonText, escapes_what_json_does_not_allow) {
  const std::pair<std::string_view, const char*> cases[] = {
      {"plain", "\"plain\""},
      {"a\"b\\c", R"("a\"b\\c")"},
      {std::string_view("\0\n\x1f\x7f", 4), R"("\u0000\u000a\u001f\u007f")"},
      {"\xc3\xa4\xe2\x82\xac", R"("\u00e4\u20ac")"},
      {"\xf0\x9f\x98\x80", R"("\ud83d\ude00")"},
      {"\xff\xc3", R"("\ufffd\ufffd")"},
      {"\xc0\x80", R"("\ufffd\ufffd")"},
      {"\xed\xa0\x80", R"("\ufffd\ufffd\ufffd")"},
      {"\xe2\x82x", R"("\ufffd\ufffdx")"}};
  for (const auto& [text, json] : cases) EXPECT_EQ(json_of(text), json);
}

}  // namespace
}  // namespace reshard::trace
