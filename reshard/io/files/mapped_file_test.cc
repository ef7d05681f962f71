// SPDX-License-Identifier: Apache-2.0
// Protects: a mapping shows the file's bytes, gives memory back when told to, and refuses what is
// no file.
#include "reshard/io/files/mapped_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempDir;

/// Bytes of this process's memory that are pages of files, as the system counts them.
std::int64_t resident_file_bytes() {
  const std::string status = testing::read_file("/proc/self/status");
  const auto at = status.find("RssFile:");
  return at == status.npos ? -1 : std::stoll(status.substr(at + 8)) * 1024;
}

TEST(MappedFile, shows_the_bytes_and_moves) {
  const TempDir dir;
  const auto path = dir.write("a", std::string("x\0y", 3));
  auto first = *MappedFile::open(path);
  const MappedFile file = std::move(first);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.size(), 3);
  EXPECT_EQ(file.bytes()[2], std::byte{'y'});
}

TEST(MappedFile, errors_name_path_and_cause) {
  const TempDir dir;
  const auto expect = [&](const std::string& path, Code code, const char* words) {
    const auto file = MappedFile::open(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.error().code, code);
    EXPECT_THAT(file.error().message, AllOf(HasSubstr(path), HasSubstr(words)));
  };
  expect(dir / "none", Code::not_found, "does not exist");
  expect(dir.path(), Code::invalid_argument, "is a folder");
  expect(dir.write("empty", ""), Code::corrupt, "is empty");
  expect(dir.write("file", "x") + "/in", Code::io, "not a folder");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect(dir / "pipe", Code::invalid_argument, "not a regular file");
  if (::geteuid() != 0) {
    const auto secret = dir.write("secret", "x");
    ASSERT_EQ(::chmod(secret.c_str(), 0), 0);
    expect(secret, Code::io, "permission denied");
  }
}

TEST(MappedFile, dropping_behind_a_pass_keeps_resident_memory_bounded) {
  constexpr std::int64_t kStep = 1'000'000, kSteps = 64;
  const TempDir dir;
  const auto file = *MappedFile::open(dir.write("big", std::string(kStep * kSteps, 'z')));
  if (resident_file_bytes() < 0) GTEST_SKIP() << "the system tells no RssFile";
  file.advise_sequential();
  file.prefetch(0, file.size());
  const std::int64_t before = resident_file_bytes();
  std::int64_t most = 0, sum = 0;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    for (std::int64_t k = 0; k < kStep; k += 1000)
      sum += std::to_integer<int>(file.bytes()[static_cast<std::size_t>(i * kStep + k)]);
    most = std::max(most, resident_file_bytes() - before);
    file.drop(i * kStep, kStep);
  }
  EXPECT_EQ(sum, 'z' * kSteps * 1000);
  EXPECT_LT(most, 8 * kStep);
  EXPECT_LT(resident_file_bytes() - before, kStep);
}

/// Runs `body` in a process of its own and returns what wait() says of it.
template <class Body>
int status_of_process(Body&& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

int sum_of(std::span<const std::byte> bytes) {
  int sum = 0;
  for (const std::byte b : bytes) sum += std::to_integer<int>(b);
  return sum;
}

TEST(MappedFile, reading_what_was_cut_off_is_an_error_in_every_thread_and_no_death) {
  const TempDir dir;
  const auto path = dir.write("a", std::string(1 << 20, 'z'));
  const auto other = dir.write("b", "whole");
  const int status = status_of_process([&] {
    guard_mappings();
    const auto file = *MappedFile::open(path), whole = *MappedFile::open(other);
    const bool before = file.unchanged().has_value() && !any_mapping_lost();
    if (::truncate(path.c_str(), 100) != 0) return 2;
    int zeros = 0;
    {
      std::vector<std::jthread> readers;
      for (std::size_t i = 1; i <= 4; ++i)
        readers.emplace_back([&file, i] { (void)sum_of(file.bytes().subspan(i << 16)); });
    }
    zeros = sum_of(file.bytes().subspan(1 << 16));
    const auto after = file.unchanged();
    const bool named = !after && after.error().message.starts_with(path);
    return before && zeros == 0 && named && any_mapping_lost() && whole.unchanged() ? 0 : 1;
  });
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(MappedFile, a_file_that_is_cut_and_made_whole_again_has_changed_all_the_same) {
  const TempDir dir;
  const auto path = dir.write("a", std::string(1 << 16, 'z'));
  const auto file = *MappedFile::open(path);
  ASSERT_EQ(::truncate(path.c_str(), 100), 0);
  dir.write("a", std::string(1 << 16, 'z'));
  EXPECT_FALSE(file.unchanged());
}

TEST(MappedFile, the_guard_leaves_other_bus_errors_to_others) {
  const TempDir dir;
  const auto path = dir.write("a", std::string(1 << 16, 'z'));
  const int status = status_of_process([&] {
    std::signal(SIGBUS, [](int) { ::_exit(7); });
    guard_mappings();
    const int fd = ::open(path.c_str(), O_RDONLY);
    void* const data = ::mmap(nullptr, 1 << 16, PROT_READ, MAP_SHARED, fd, 0);
    if (::truncate(path.c_str(), 0) != 0) return 2;
    return sum_of({static_cast<const std::byte*>(data), 1});
  });
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(MappedFile, every_change_of_a_file_shows) {
  namespace fs = std::filesystem;
  const TempDir dir;
  const auto expect_changed = [&](const char* words, auto&& change) {
    const auto file = *MappedFile::open(dir.write("a", "abc"));
    ASSERT_TRUE(file.unchanged());
    const auto time = fs::last_write_time(dir / "a");
    change();
    std::error_code ignored;
    fs::last_write_time(dir / "a", time, ignored);
    const auto now = file.unchanged();
    ASSERT_FALSE(now) << words;
    EXPECT_THAT(now.error().message, AllOf(HasSubstr(dir / "a"), HasSubstr(words)));
  };
  expect_changed("content changed", [&] { dir.write("a", "abd"); });
  expect_changed("it had 3 bytes and has 4 now", [&] { dir.write("a", "abcd"); });
  expect_changed("it is gone", [&] { fs::remove(dir / "a"); });
  expect_changed("another file has its name", [&] {
    dir.write("b", "abc");
    fs::rename(dir / "b", dir / "a");
  });
}

TEST(MappedFile, ranges_outside_the_file_are_harmless) {
  const TempDir dir;
  const auto file = *MappedFile::open(dir.write("a", "abc"));
  file.drop(0, 1 << 30);
  file.drop(100, 5);
  file.drop(-5, 10);
  file.drop(1, INT64_MAX);
  file.prefetch(2, INT64_MAX);
  EXPECT_EQ(file.bytes()[2], std::byte{'c'});
}

}  // namespace
}  // namespace reshard
