// SPDX-License-Identifier: Apache-2.0
// Protects: a line of progress fits the terminal, its rate is of this run, and a log gets a line
// now and then.
#include "cli/progress_bar.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace reshard::cli {
namespace {

constexpr Index kGb = 1'000'000'000;

/// A place to show progress at, and its clock.
class Shown {
 public:
  explicit Shown(bool terminal) : terminal_(terminal), file_(::open_memstream(&text_, &size_)) {}
  ~Shown() {
    std::fclose(file_);
    std::free(text_);
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;
  ProgressBar::Place place() {
    return {file_, terminal_, [this] { return columns; }, [this] { return seconds; }};
  }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

  int columns = 100;
  double seconds = 1000;

 private:
  bool terminal_;
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

TEST(ProgressText, fits_any_width_and_keeps_what_tells_most) {
  const ProgressState state{"write", 25 * kGb, 100 * kGb, 20 * kGb, 10};
  std::size_t last = 0;
  for (int columns = 0; columns <= 100; ++columns) {
    const std::string text = progress_text(state, columns);
    EXPECT_LE(text.size(), static_cast<std::size_t>(columns)) << text;
    EXPECT_GE(text.size(), last) << text;
    last = text.size();
    EXPECT_EQ(text.find("25 %") != std::string::npos, columns >= 5) << text;
  }
  EXPECT_EQ(progress_text(state, 100),
            "write [######..................]  25 %  25.0 GB of 100 GB  2.00 GB/s  37.50 s left");
  EXPECT_EQ(progress_text(state, 44), "write  25 %  25.0 GB of 100 GB  37.50 s left");
}

TEST(ProgressBar, the_rate_is_of_what_this_run_moved) {
  Shown shown(true);
  {
    ProgressBar bar(shown.place());
    const Progress progress = bar.progress();
    progress("write", 90 * kGb, 100 * kGb);  // of an earlier run
    EXPECT_EQ(shown.text(), "");
    shown.seconds += 2;
    progress("write", 92 * kGb, 100 * kGb);
  }
  EXPECT_EQ(shown.text(),
            "\rwrite [######################..]  92 %  92.0 GB of 100 GB  1.00 GB/s  8.00 s left"
            "\x1b[K\r\x1b[K");
}

TEST(ProgressBar, the_line_follows_the_width_of_the_terminal) {
  Shown shown(true);
  ProgressBar bar(shown.place());
  const Progress progress = bar.progress();
  for (const int columns : {80, 41, 20, 5}) {
    shown.columns = columns;
    shown.seconds += 2;
    const std::size_t before = shown.text().size();
    progress("write", 50 * kGb, 100 * kGb);
    const std::string line = shown.text().substr(before);
    EXPECT_LT(line.size() - std::string("\r\x1b[K").size(), static_cast<std::size_t>(columns));
  }
}

TEST(ProgressBar, a_log_gets_a_line_each_half_minute) {
  Shown shown(false);
  {
    ProgressBar bar(shown.place());
    const Progress progress = bar.progress();
    for (int step = 0; step <= 70; ++step) {
      EXPECT_TRUE(progress("write", step * kGb, 100 * kGb));
      shown.seconds += 1;
    }
  }
  EXPECT_EQ(shown.text(),
            "reshard: write [#######.................]  30 %  30.0 GB of 100 GB  1.00 GB/s  "
            "70.00 s left\n"
            "reshard: write [##############..........]  60 %  60.0 GB of 100 GB  1.00 GB/s  "
            "40.00 s left\n");
}

TEST(ProgressBar, short_work_says_nothing) {
  for (const bool terminal : {true, false}) {
    Shown shown(terminal);
    {
      ProgressBar(shown.place()).progress()("write", kGb, kGb);
    }
    EXPECT_EQ(shown.text(), "");
  }
}

}  // namespace
}  // namespace reshard::cli
