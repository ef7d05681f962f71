// SPDX-License-Identifier: Apache-2.0
// Protects: an output folder appears complete or not at all, one writer at a time, and resumes only
// its own job.
#include "reshard/io/files/output_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempDir;
using Names = std::vector<std::string>;

void expect_refused(const std::string& target, const std::string& key, Code code,
                    const char* words) {
  const auto output = OutputDir::create(target, key);
  ASSERT_FALSE(output) << target;
  EXPECT_EQ(output.error().code, code) << output.error().message;
  EXPECT_THAT(output.error().message,
              AllOf(HasSubstr(target.substr(target.rfind('/') + 1)), HasSubstr(words)));
}

/// Runs `body` in a process that then dies without any clean-up.
template <class Body>
void in_killed_process(Body&& body) {
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
}

TEST(OutputDir, appears_at_commit_with_exactly_its_files) {
  const TempDir dir;
  auto output = *OutputDir::create(dir / "out/", "key");
  ASSERT_TRUE(output.write_text("a.json", "{}"));
  ASSERT_TRUE(output.mark_finished("a.json"));
  EXPECT_EQ(dir.names(), Names{"out.partial"});
  ASSERT_TRUE(output.commit(true));
  EXPECT_EQ(dir.names(), Names{"out"});
  EXPECT_EQ(testing::read_file(dir / "out/a.json"), "{}");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "out"), {}), 1);
}

TEST(OutputDir, without_commit_nothing_stays_that_could_not_be_resumed) {
  const TempDir dir;
  {
    auto output = *OutputDir::create(dir / "a");
    ASSERT_TRUE(output.write_text("x", "1"));
  }
  {
    auto output = *OutputDir::create(dir / "b", "key");
    ASSERT_TRUE(output.write_text("x", "1"));
  }
  {
    auto output = *OutputDir::create(dir / "c");
    ASSERT_TRUE(output.write_text("x", "1"));
    ASSERT_TRUE(output.mark_finished("x"));
  }
  EXPECT_EQ(dir.names(), Names{});
}

TEST(OutputDir, the_same_job_resumes_with_its_finished_files_only) {
  const TempDir dir;
  {
    auto output = *OutputDir::create(dir / "out", "key\n\"1\"");
    ASSERT_TRUE(output.write_text("done", "12345"));
    ASSERT_TRUE(output.mark_finished("done"));
    ASSERT_TRUE(output.write_text("half", "1"));
  }
  auto output = *OutputDir::create(dir / "out", "key\n\"1\"");
  EXPECT_EQ(output.finished(), (FinishedFiles{{"done", {5, ""}}}));
  EXPECT_FALSE(fs::exists(output.path_of("half")));
  EXPECT_EQ(testing::read_file(output.path_of("done")), "12345");
  ASSERT_TRUE(output.write_text("half", "whole"));
  ASSERT_TRUE(output.mark_finished("half"));
  ASSERT_TRUE(output.commit());
  EXPECT_EQ(testing::read_file(dir / "out/half"), "whole");
}

TEST(OutputDir, a_killed_job_resumes_and_its_lock_is_gone) {
  const TempDir dir;
  in_killed_process([&] {
    auto output = *OutputDir::create(dir / "out", "key");
    (void)output.write_text("done", "1");
    (void)output.mark_finished("done");
    (void)output.write_text("half", "1");
  });
  EXPECT_EQ(dir.names(), Names{"out.partial"});
  const auto output = OutputDir::create(dir / "out", "key");
  ASSERT_TRUE(output) << output.error().message;
  EXPECT_EQ(output->finished().size(), 1u);
}

TEST(OutputDir, a_record_cut_off_by_a_kill_loses_only_its_last_line) {
  const TempDir dir;
  {
    auto o = *OutputDir::create(dir / "out", "k");
    (void)o.write_text("a", "1");
    (void)o.mark_finished("a");
    (void)o.write_text("b", "2");
  }
  const auto record = dir / "out.partial/.reshard-resume";
  dir.write("out.partial/b", "2");
  dir.write("out.partial/.reshard-resume", testing::read_file(record) + "1 - \"b\"");
  const auto output = *OutputDir::create(dir / "out", "k");
  EXPECT_EQ(output.finished(), (FinishedFiles{{"a", {1, ""}}}));
  EXPECT_FALSE(fs::exists(output.path_of("b")));
}

TEST(OutputDir, files_that_changed_or_may_have_been_lost_are_written_again) {
  const TempDir dir;
  const auto leave = [&] {
    auto o = *OutputDir::create(dir / "out", "k");
    (void)o.write_text("a", "123");
    (void)o.mark_finished("a");
  };
  leave();
  dir.write("out.partial/a", "12");
  EXPECT_TRUE(OutputDir::create(dir / "out", "k")->finished().empty());
  leave();
  auto record = testing::read_file(dir / "out.partial/.reshard-resume");
  const auto boot = record.find('\n', record.find('\n') + 1) + 2;
  record[boot] = record[boot] == 'f' ? 'e' : 'f';
  dir.write("out.partial/.reshard-resume", record);
  EXPECT_TRUE(OutputDir::create(dir / "out", "k")->finished().empty());
}

/// A fingerprint that shows every difference: the content itself.
Result<std::string> content_of(const std::string& path) { return testing::read_file(path); }

TEST(OutputDir, a_finished_file_counts_by_its_content_and_not_by_its_size) {
  const TempDir dir;
  const auto leave = [&] {
    auto o = *OutputDir::create(dir / "out", "k", content_of);
    (void)o.write_text("a", "123");
    (void)o.mark_finished("a", "123");
  };
  leave();
  EXPECT_EQ(OutputDir::create(dir / "out", "k", content_of)->finished(),
            (FinishedFiles{{"a", {3, "123"}}}));
  dir.write("out.partial/a", "124");
  EXPECT_TRUE(OutputDir::create(dir / "out", "k", content_of)->finished().empty());
  leave();
  EXPECT_TRUE(OutputDir::create(dir / "out", "k")->finished().empty()) << "nothing can tell";
}

TEST(OutputDir, a_finished_file_is_looked_at_again_before_the_commit) {
  const TempDir dir;
  auto output = *OutputDir::create(dir / "out", "k", content_of);
  ASSERT_TRUE(output.write_text("a", "123"));
  ASSERT_TRUE(output.mark_finished("a", "123"));
  dir.write("out.partial/a", "124");
  const auto changed = output.commit();
  ASSERT_FALSE(changed);
  EXPECT_THAT(changed.error().message,
              AllOf(HasSubstr("out.partial/a: "), HasSubstr("changed after it was finished")));
  EXPECT_EQ(dir.names(), Names{"out.partial"});
  dir.write("out.partial/a", "123");
  EXPECT_TRUE(output.commit()) << "the same content is the same file";
}

TEST(OutputDir, what_nobody_will_resume_does_not_stay) {
  const TempDir dir;
  {
    auto output = *OutputDir::create(dir / "out", "k");
    ASSERT_TRUE(output.write_text("a", "123"));
    ASSERT_TRUE(output.mark_finished("a"));
    output.give_up();
  }
  EXPECT_EQ(dir.names(), Names{});
}

TEST(OutputDir, a_partial_folder_that_was_moved_away_is_not_committed) {
  const TempDir dir;
  auto output = *OutputDir::create(dir / "out", "k");
  fs::rename(dir / "out.partial", dir / "mine");
  ASSERT_TRUE(fs::create_directory(dir / "out.partial"));
  dir.write("out.partial/a", "another's");
  EXPECT_FALSE(output.commit());
  EXPECT_EQ(dir.names(), (Names{"mine", "out.partial"}));
  fs::rename(dir / "out.partial", dir / "other");
  fs::rename(dir / "mine", dir / "out.partial");
}

TEST(OutputDir, links_are_not_taken_for_the_files_of_a_job) {
  const TempDir dir;
  {
    auto o = *OutputDir::create(dir / "out", "k", content_of);
    (void)o.write_text("a", "123");
    (void)o.mark_finished("a", "123");
  }
  dir.write("elsewhere", "123");
  fs::remove(dir / "out.partial/a");
  fs::create_symlink("../elsewhere", dir / "out.partial/a");
  EXPECT_TRUE(OutputDir::create(dir / "out", "k", content_of)->finished().empty());
  EXPECT_EQ(testing::read_file(dir / "elsewhere"), "123");
}

TEST(OutputDir, other_jobs_folders_are_left_alone) {
  const TempDir dir;
  {
    auto o = *OutputDir::create(dir / "out", "mine");
    (void)o.write_text("a", "1");
    (void)o.mark_finished("a");
  }
  expect_refused(dir / "out", "yours", Code::invalid_argument,
                 "other than this one; remove it (rm -r ");
  expect_refused(dir / "out", "", Code::invalid_argument, "other than this one");
  EXPECT_EQ(OutputDir::create(dir / "out", "mine")->finished().size(), 1u);
  in_killed_process([&] {
    auto o = *OutputDir::create(dir / "plain");
    (void)o.write_text("a", "1");
    ::_exit(0);
  });
  expect_refused(dir / "plain", "", Code::invalid_argument, "cannot be resumed");
  ASSERT_TRUE(fs::create_directory(dir / "x.partial"));
  dir.write("x.partial/precious", "1");
  expect_refused(dir / "x", "k", Code::invalid_argument, "no interrupted job");
  dir.write("x.partial/.reshard-resume", "something else");
  expect_refused(dir / "x", "k", Code::corrupt, "not a resume record");
  EXPECT_EQ(testing::read_file(dir / "x.partial/precious"), "1");
}

TEST(OutputDir, two_writers_of_one_folder_are_refused) {
  const TempDir dir;
  auto first = *OutputDir::create(dir / "out", "key");
  expect_refused(dir / "out", "key", Code::io, "another process");
  ASSERT_TRUE(first.commit());
  expect_refused(dir / "out", "key", Code::invalid_argument,
                 "exists and is not overwritten; remove it");
}

TEST(OutputDir, a_target_that_appears_meanwhile_is_not_replaced) {
  const TempDir dir;
  {
    auto output = *OutputDir::create(dir / "out");
    ASSERT_TRUE(output.write_text("a", "1"));
    ASSERT_TRUE(fs::create_directory(dir / "out"));
    const auto done = output.commit();
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message, HasSubstr("exists"));
  }
  EXPECT_EQ(dir.names(), Names{"out"});
  EXPECT_TRUE(fs::is_empty(dir / "out"));
}

TEST(OutputDir, impossible_targets_are_named) {
  const TempDir dir;
  fs::create_symlink("nowhere", dir / "link");
  expect_refused(dir / "link", "", Code::invalid_argument, "exists");
  expect_refused(dir / "no/out", "", Code::not_found, "parent folder");
  expect_refused(dir.write("file", "") + "/out", "", Code::io, "not a folder");
  for (const auto* bad : {"", "/", ".", "..", "a/.."})
    EXPECT_EQ(OutputDir::create(bad).error().code, Code::invalid_argument) << bad;
  if (::geteuid() != 0) {
    ASSERT_TRUE(fs::create_directory(dir / "locked"));
    ASSERT_EQ(::chmod((dir / "locked").c_str(), 0500), 0);
    expect_refused(dir / "locked/out", "", Code::io, "permission denied");
  }
}

TEST(OutputDir, a_moved_writer_owns_the_folder) {
  const TempDir dir;
  std::optional<OutputDir> kept;
  {
    auto output = *OutputDir::create(dir / "out");
    kept = std::move(output);
  }
  ASSERT_TRUE(kept->write_text("a", "1"));
  ASSERT_TRUE(kept->commit());
  EXPECT_EQ(dir.names(), Names{"out"});
}

}  // namespace
}  // namespace reshard
