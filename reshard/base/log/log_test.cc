// SPDX-License-Identifier: Apache-2.0
// Protects: an event is one whole line with its time, level, room and rank; an event whose level is
// off costs no formatting; threads write whole lines.
#include "reshard/base/log/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace reshard {
namespace {

using std::chrono::milliseconds;
using Time = std::chrono::system_clock::time_point;

std::vector<std::string> received;

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    received.clear();
    set_log_sink([](const LogRecord& r) { received.push_back(log_line(r)); });
  }
  void TearDown() override {
    set_log_sink(nullptr);
    set_log_level(LogLevel::warning);
  }
};

TEST(LogLine, has_time_level_room_and_rank) {
  const Time time{milliseconds(1'796'000'491'123)};
  EXPECT_EQ(log_line({LogLevel::info, "exec", 3, "refit done", time}),
            "2026-11-30T01:01:31.123Z info exec rank 3: refit done\n");
  EXPECT_EQ(log_line({LogLevel::warning, "base", {}, "x", Time{milliseconds(-1)}}),
            "1969-12-31T23:59:59.999Z warning base: x\n");
}

TEST(LogLine, is_one_line_whatever_the_message_has) {
  EXPECT_EQ(log_line({LogLevel::error, "io", {}, "a\nb\x1b[31m\x7f", Time{}}),
            "1970-01-01T00:00:00.000Z error io: a?b?[31m?\n");
}

TEST(LogLevels, have_names) {
  for (const auto level : {LogLevel::error, LogLevel::warning, LogLevel::info, LogLevel::debug})
    EXPECT_EQ(log_level_named(name(level)), level);
  for (const char* word : {"", "Info", "warn", "errors"})
    EXPECT_EQ(log_level_named(word), std::nullopt);
}

TEST_F(Log, formats_nothing_if_the_level_is_off) {
  int made = 0;
  const auto message = [&] { return ++made, std::string("m"); };
  set_log_level(LogLevel::info);
  log_event(LogLevel::debug, "plan", {}, message);
  EXPECT_EQ(made, 0);
  log_event(LogLevel::info, "plan", {}, message);
  log_event(LogLevel::error, "plan", 0, message);
  EXPECT_EQ(made, 2);
  ASSERT_EQ(received.size(), 2);
  EXPECT_NE(received[1].find("error plan rank 0: m\n"), std::string::npos);
  set_log_level(LogLevel::error);
  log_event(LogLevel::warning, "plan", {}, message);
  EXPECT_EQ(made, 2);
}

TEST(LogSinks, standard_error_gets_whole_lines_of_several_threads) {
  constexpr int kThreads = 4, kLines = 50;
  ::testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i)
        log_event(LogLevel::error, "test", t, [] { return std::string(200, 'x'); });
    });
  for (auto& thread : threads) thread.join();
  const std::string text = ::testing::internal::GetCapturedStderr();
  const std::regex line(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z error test rank \d: x{200}\n)");
  EXPECT_EQ(std::distance(std::sregex_iterator(text.begin(), text.end(), line), {}),
            kThreads * kLines);
}

/// Logs an event of each level, as a process with this RESHARD_LOG does, and ends.
void log_each_level(const char* variable) {
  variable == nullptr ? ::unsetenv("RESHARD_LOG") : ::setenv("RESHARD_LOG", variable, 1);
  for (const auto level : {LogLevel::error, LogLevel::warning, LogLevel::info, LogLevel::debug})
    log_event(level, "test", {}, [] { return std::string("said"); });
  std::_Exit(name(log_level()).size() == 0);
}

TEST(LogDeathTest, the_environment_chooses_the_level) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not read it yet
  const auto ends = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(log_each_level(nullptr), ends, "error test: said\n.*warning test: said\n$");
  EXPECT_EXIT(log_each_level("debug"), ends, "info test: said\n.*debug test: said\n$");
  EXPECT_EXIT(log_each_level("error"), ends, "^[^ ]+ error test: said\n$");
  EXPECT_EXIT(log_each_level("loud"), ends,
              "warning base: RESHARD_LOG=loud is none of error, warning, info, debug\n");
}

}  // namespace
}  // namespace reshard
