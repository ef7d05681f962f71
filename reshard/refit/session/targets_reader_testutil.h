// SPDX-License-Identifier: Apache-2.0
// What tests of killed processes keep where all processes see it, and who reads it meanwhile.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/refit/version.h"

namespace reshard {

/// One version word for each rank, in memory that processes forked later have too.
class SharedWords {
 public:
  explicit SharedWords(int ranks) : ranks_(ranks) {
    void* at = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    words_ = static_cast<PublishedVersion*>(at);
    for (int r = 0; r < ranks; ++r) new (words_ + r) PublishedVersion;
  }
  ~SharedWords() { ::munmap(words_, bytes()); }
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;

  int ranks() const { return ranks_; }
  PublishedVersion& of(Rank r) const { return words_[r.index()]; }

 private:
  std::size_t bytes() const { return sizeof(PublishedVersion) * static_cast<std::size_t>(ranks_); }

  int ranks_;
  PublishedVersion* words_;
};

/// As long as it lives a thread reads the targets of all ranks, as engines would. The words and
/// what `wrong` looks at have to outlive it.
class TargetsReader {
 public:
  /// wrong(rank, held): the bytes of a rank's target that are not what its word says; 0 where it
  /// may not be read.
  TargetsReader(const SharedWords& words, std::function<Index(Rank, const TargetVersion&)> wrong)
      : wrong_(std::move(wrong)), thread_([this, &words] { read(words); }) {}
  ~TargetsReader() {
    stop_ = true;
    thread_.join();
  }
  TargetsReader(const TargetsReader&) = delete;
  TargetsReader& operator=(const TargetsReader&) = delete;

 private:
  void read(const SharedWords& words) {
    std::vector<std::int64_t> last(static_cast<std::size_t>(words.ranks()), -1);
    while (!stop_)
      for (int r = 0; r < words.ranks(); ++r) {
        const PublishedVersion& published = words.of(Rank(r));
        const TargetVersion held = published.target_version();
        const Index wrong = wrong_(Rank(r), held);
        if (published.target_version_after_reading() != held) continue;
        EXPECT_EQ(wrong, 0) << "rank " << r << " holds version " << held.version;
        EXPECT_GE(held.version, last[static_cast<std::size_t>(r)]);
        last[static_cast<std::size_t>(r)] = held.version;
      }
  }

  std::function<Index(Rank, const TargetVersion&)> wrong_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace reshard
