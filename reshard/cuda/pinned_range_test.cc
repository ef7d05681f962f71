// SPDX-License-Identifier: Apache-2.0
// Protects: kernels reach every page of a pinned range, whoever pinned parts of it before, as long
// as the range lives.
#include "reshard/cuda/pinned_range.h"
#include "reshard/cuda/driver.h"
#include "reshard/cuda/kernel_image.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rapidcheck/gtest.h>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/memory.h"
#include "reshard/cuda/tiles/tile_runner.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard::cuda {
namespace {

const auto kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

/// Pages of host memory that nobody has pinned.
class Pages {
 public:
  explicit Pages(std::size_t count) : bytes_(count * kPage) {
    at_ = static_cast<std::byte*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  }
  ~Pages() { ::munmap(at_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::span<std::byte> range(std::size_t begin, std::size_t end) const {
    return {at_ + begin, end - begin};
  }
  std::span<std::byte> all() const { return range(0, bytes_); }

 private:
  std::size_t bytes_;
  std::byte* at_;
};

class PinnedRanges : public ::testing::Test {
 protected:
  PinnedRange pinned(std::span<std::byte> memory) const {
    auto made = PinnedRange::make(gpu_, memory);
    EXPECT_TRUE(made) << made.error().message;
    return made ? std::move(*made) : PinnedRange();
  }
  /// The driver's status when another user registers the memory, or unregisters it.
  int registered(std::span<std::byte> memory) const {
    return status_of([&] {
      return gpu_->driver().cuMemHostRegister(memory.data(), memory.size(),
                                              kPortableHostMemory | kMappedHostMemory);
    });
  }
  int unregistered(const std::byte* at) const {
    return status_of(
        [&] { return gpu_->driver().cuMemHostUnregister(const_cast<std::byte*>(at)); });
  }
  /// Nobody can pin the byte once more.
  bool is_pinned(const std::byte& byte) const {
    auto* const at = const_cast<std::byte*>(&byte);
    const int status = registered({at, 1});
    if (status != kSuccess) return status == kIsPinned;
    EXPECT_EQ(unregistered(at), kSuccess);
    return false;
  }
  std::size_t pinned_pages(std::span<std::byte> pages) const {
    std::size_t count = 0;
    for (std::size_t at = 0; at < pages.size(); at += kPage) {
      if (is_pinned(pages[at])) ++count;
    }
    return count;
  }
  /// Fills the memory, copies it to the GPU by a kernel, and compares.
  void expect_kernels_read(std::span<std::byte> memory) const {
    const auto bytes = static_cast<Index>(memory.size());
    const auto given = random_bytes(bytes, 3);
    std::ranges::copy(given, memory.begin());
    const auto target = Buffer::on_device(gpu_, bytes);
    CopyTask task;
    task.src = memory.data();
    task.dst = target->data();
    task.copy.run_bytes = bytes;
    TileTable table;
    ASSERT_TRUE(table.add(task));
    table.end_level();
    const auto runner = TileRunner::make(gpu_, table, 0);
    const auto stream = Stream::make(gpu_);
    ASSERT_TRUE(runner && stream && runner->launch(*stream));
    const auto ended = stream->synchronize();
    ASSERT_TRUE(ended) << ended.error().message;
    EXPECT_EQ(read_from_gpu(gpu_, target->data(), given.size()), given);
  }

  std::shared_ptr<const Device> gpu_ = gpu_under_test();

 private:
  template <class F>
  int status_of(F&& f) const {
    int status = kSuccess;
    EXPECT_TRUE(gpu_->call("a test's", [&] {
      status = f();
      return kSuccess;
    }));
    return status;
  }
};

TEST_F(PinnedRanges, ArePinnedWhileTheyLive) {
  const Pages pages(8);
  {
    PinnedRange range = pinned(pages.all());
    const PinnedRange moved = std::move(range);
    EXPECT_EQ(pinned_pages(pages.all()), 8U);
  }
  EXPECT_EQ(pinned_pages(pages.all()), 0U);
}

TEST_F(PinnedRanges, WhatOthersPinnedStaysTheirsAndTheRestIsPinned) {
  const std::size_t all = 8 * kPage, odd = 3 * kPage + 77;
  for (const auto& [begin, end] : {std::pair{std::size_t{0}, kPage},
                                   {3 * kPage, 4 * kPage},
                                   {7 * kPage, all},
                                   {odd, odd + 5001},
                                   {std::size_t{0}, all}}) {
    const Pages pages(8);
    ASSERT_EQ(registered(pages.range(begin, end)), kSuccess);
    {
      const PinnedRange range = pinned(pages.all());
      EXPECT_EQ(pinned_pages(pages.all()), 8U) << begin << ' ' << end;
      expect_kernels_read(pages.all());
    }
    for (std::size_t at = 0; at < all; at += 7)
      ASSERT_EQ(is_pinned(pages.all()[at]), begin <= at && at < end) << at;
    EXPECT_EQ(unregistered(pages.range(begin, end).data()), kSuccess);
  }
}

TEST_F(PinnedRanges, MemoryOfThePinnedAllocatorIsPinnedAlready) {
  const auto buffer = Buffer::pinned(gpu_, 100'000);
  ASSERT_TRUE(buffer);
  emulated_gpu().reset();
  const std::span<std::byte> memory(buffer->data() + 8, 50'000);
  const PinnedRange range = pinned(memory);
  expect_kernels_read(memory);
  if (!is_emulated()) return;
  EXPECT_EQ(emulated_gpu().calls["cuMemHostRegister"], 1);
}

TEST_F(PinnedRanges, WhatTwoShareIsPinnedUntilBothHaveGone) {
  const Pages pages(4);
  const auto low = pages.range(100, 2 * kPage + 100), high = pages.range(kPage + 50, 3 * kPage);
  auto first = std::make_unique<PinnedRange>(pinned(low));
  auto second = std::make_unique<PinnedRange>(pinned(high));
  first.reset();
  expect_kernels_read(high);
  EXPECT_TRUE(is_pinned(high.front()));
  second.reset();
  EXPECT_EQ(pinned_pages(pages.all()), 0U);
}

TEST_F(PinnedRanges, APageThatTwoShareStaysReachable) {
  const Pages pages(4);
  const auto low = pages.range(100, kPage + 100), high = pages.range(kPage + 100, 3 * kPage);
  auto first = std::make_unique<PinnedRange>(pinned(low));
  const PinnedRange second = pinned(high);
  first.reset();
  expect_kernels_read(high);
}

TEST_F(PinnedRanges, MemoryThatCannotBePinnedIsAnError) {
  if (!is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const Pages pages(1);
  Driver driver = emulated_driver();
  driver.cuMemHostRegister = [](void*, std::size_t, unsigned) { return int{kInvalidValue}; };
  const auto range = PinnedRange::make(Device::open(driver, 0, {}).value(), pages.all());
  ASSERT_FALSE(range);
  EXPECT_EQ(range.error().message.substr(0, 32), "cuMemHostRegister of 4096 bytes:");
}

TEST_F(PinnedRanges, OtherErrorsAreNotTriedInParts) {
  if (!is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const Pages pages(2);
  emulated_gpu().reset();
  emulated_gpu().faults["cuMemHostRegister"] = kOutOfMemory;
  EXPECT_FALSE(PinnedRange::make(gpu_, pages.all()));
  EXPECT_EQ(emulated_gpu().calls["cuMemHostRegister"], 1);
  EXPECT_EQ(pinned_pages(pages.all()), 0U);
}

TEST_F(PinnedRanges, AnErrorLeavesNothingPinned) {
  if (!is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const Pages pages(8);
  const auto ours = pages.range(0, kPage), theirs = pages.range(4 * kPage, 5 * kPage);
  ASSERT_EQ(registered(theirs), kSuccess);
  const PinnedRange first = pinned(ours);
  emulated_gpu().faults["cuPointerGetAttribute"] = kOutOfMemory;
  EXPECT_FALSE(PinnedRange::make(gpu_, pages.all()));
  EXPECT_EQ(pinned_pages(pages.all()), 2U);
  EXPECT_EQ(unregistered(theirs.data()), kSuccess);
}

RC_GTEST_FIXTURE_PROP(PinnedRanges, AnyRangesInAnyOrderArePinnedAsLongAsOneOfThemLives, ()) {
  constexpr int kCount = 12;
  const Pages pages(kCount);
  const auto any_range = [&] {
    const auto begin = *rc::gen::inRange<std::size_t>(0, kCount * kPage - 1);
    return pages.range(begin, *rc::gen::inRange<std::size_t>(begin + 1, kCount * kPage));
  };
  const auto theirs = any_range();
  RC_ASSERT(registered(theirs) == kSuccess);
  std::vector<std::pair<std::span<std::byte>, PinnedRange>> ours;
  const auto has = [](std::span<std::byte> range, const std::byte& byte) {
    return range.data() <= &byte && &byte < range.data() + range.size();
  };
  const auto check = [&] {
    for (int probe = 0; probe < 40; ++probe) {
      const auto& byte = pages.all()[*rc::gen::inRange<std::size_t>(0, kCount * kPage)];
      bool expected = has(theirs, byte);
      for (const auto& [range, pinned] : ours) expected = expected || has(range, byte);
      if (expected) RC_ASSERT(is_pinned(byte));
    }
  };
  for (int step = 0; step < 12; ++step) {
    if (!ours.empty() && *rc::gen::inRange(0, 3) == 0) {
      ours.erase(ours.begin() +
                 *rc::gen::inRange<std::ptrdiff_t>(0, static_cast<std::ptrdiff_t>(ours.size())));
    } else {
      const auto range = any_range();
      ours.emplace_back(range, pinned(range));
    }
    check();
  }
  ours.clear();
  RC_ASSERT(unregistered(theirs.data()) == kSuccess);
  RC_ASSERT(pinned_pages(pages.all()) == 0U);
}

}  // namespace
}  // namespace reshard::cuda
