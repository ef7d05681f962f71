// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/gathered_writes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "reshard/base/file.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard::checkpoint {
namespace {

using testing::TempDir;

std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> bytes(count);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(rng()); });
  return bytes;
}

std::vector<std::byte> content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  file.read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
  return bytes;
}

/// The offsets of pieces: 0, and some ascending offsets below `size`.
std::vector<std::size_t> random_cuts(std::size_t size, std::size_t largest, std::mt19937& rng) {
  std::vector<std::size_t> cuts;
  for (std::size_t at = 0; at < size; at += 1 + rng() % largest) cuts.push_back(at);
  return cuts;
}

// Small pieces, large ones, and pieces across blocks; more blocks than are held.
RC_GTEST_PROP(GatheredWrites, makes_the_file_whatever_the_pieces_and_their_order, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const bool shuffled = *rc::gen::arbitrary<bool>();
  const auto largest = *rc::gen::element<std::size_t>(5000, 70'000, 300'000);
  const auto size = *rc::gen::inRange<std::size_t>(0, std::size_t{20} << 20);
  std::mt19937 rng(seed);
  const auto want = random_bytes(size, seed);
  const TempDir dir;
  const std::string path = dir / "file";
  const auto fd = files::create_file(path, static_cast<std::int64_t>(size));
  RC_ASSERT(fd.has_value());
  GatheredWrites writes(fd->get(), path, static_cast<std::int64_t>(size));
  auto cuts = random_cuts(size, largest, rng);
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
  for (std::size_t i = 0; i < cuts.size(); ++i)
    pieces.emplace_back(cuts[i], i + 1 < cuts.size() ? cuts[i + 1] : size);
  if (shuffled) std::ranges::shuffle(pieces, rng);
  for (const auto& [begin, end] : pieces)
    RC_ASSERT(
        writes.write(std::span(want).subspan(begin, end - begin), static_cast<std::int64_t>(begin))
            .has_value());
  RC_ASSERT(writes.finish().has_value());
  RC_ASSERT(content_of(path) == want);
}

TEST(GatheredWrites, take_pieces_of_several_threads) {
  constexpr std::size_t kSize = std::size_t{5} << 20, kPiece = 3001;
  const auto want = random_bytes(kSize, 1);
  const TempDir dir;
  const std::string path = dir / "file";
  const auto fd = files::create_file(path, std::int64_t{kSize});
  ASSERT_TRUE(fd);
  GatheredWrites writes(fd->get(), path, std::int64_t{kSize});
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t at = t * kPiece; at < kSize; at += 3 * kPiece)
        EXPECT_TRUE(writes.write(std::span(want).subspan(at, std::min(kPiece, kSize - at)),
                                 static_cast<std::int64_t>(at)));
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(writes.finish());
  EXPECT_EQ(content_of(path), want);
}

TEST(GatheredWrites, report_the_error_of_an_earlier_piece_at_the_end) {
  const TempDir dir;
  const std::string path = dir / "file";
  ASSERT_TRUE(files::create_file(path, 10));
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  GatheredWrites writes(fd.get(), path, 10);
  const std::vector<std::byte> bytes(10);
  EXPECT_TRUE(writes.write(std::span(bytes).first(4), 0));
  const auto done = writes.finish();
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find(path), std::string::npos);
}

}  // namespace
}  // namespace reshard::checkpoint
