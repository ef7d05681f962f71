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

/// One PublishedVersion for each rank, in memory that is shared with processes forked later.
class SharedVersions {
 public:
  explicit SharedVersions(int ranks) : ranks_(ranks) {
    void* at = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    versions_ = static_cast<PublishedVersion*>(at);
    for (int r = 0; r < ranks; ++r) new (versions_ + r) PublishedVersion;
  }
  ~SharedVersions() { ::munmap(versions_, bytes()); }
  SharedVersions(const SharedVersions&) = delete;
  SharedVersions& operator=(const SharedVersions&) = delete;

  int ranks() const { return ranks_; }
  PublishedVersion& of(Rank r) const { return versions_[r.index()]; }

 private:
  std::size_t bytes() const { return sizeof(PublishedVersion) * static_cast<std::size_t>(ranks_); }

  int ranks_;
  PublishedVersion* versions_;
};

/// While it exists, a thread reads the targets of all ranks, as engines would. The versions and the
/// memory that `wrong` reads must outlive it.
class TargetsReader {
 public:
  /// wrong(rank, version): the bytes of a rank's target that are not those of its published
  /// version; 0 if it may not be read.
  TargetsReader(const SharedVersions& versions,
                std::function<Index(Rank, const TargetVersion&)> wrong)
      : wrong_(std::move(wrong)), thread_([this, &versions] { read(versions); }) {}
  ~TargetsReader() {
    stop_ = true;
    thread_.join();
  }
  TargetsReader(const TargetsReader&) = delete;
  TargetsReader& operator=(const TargetsReader&) = delete;

 private:
  void read(const SharedVersions& versions) {
    std::vector<std::int64_t> last(static_cast<std::size_t>(versions.ranks()), -1);
    while (!stop_)
      for (int r = 0; r < versions.ranks(); ++r) {
        const PublishedVersion& published = versions.of(Rank(r));
        const TargetVersion found = published.target_version();
        const Index wrong = wrong_(Rank(r), found);
        if (published.target_version_after_reading() != found) continue;
        EXPECT_EQ(wrong, 0) << "rank " << r << " holds version " << found.version;
        EXPECT_GE(found.version, last[static_cast<std::size_t>(r)]);
        last[static_cast<std::size_t>(r)] = found.version;
      }
  }

  std::function<Index(Rank, const TargetVersion&)> wrong_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace reshard
