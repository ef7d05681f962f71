// SPDX-License-Identifier: Apache-2.0
// Protects: a mapping shows the file's bytes, gives memory back when told to, and refuses what is
// no file.
#include "reshard/io/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "reshard/io/temp_dir_testutil.h"

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
