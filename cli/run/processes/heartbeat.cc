// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes/heartbeat.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

namespace reshard::cli {
namespace {

using Count = std::atomic<std::uint64_t>;
static_assert(Count::is_always_lock_free && sizeof(Count) == sizeof(std::uint64_t));

constexpr auto kEvery = std::chrono::milliseconds(100);
/// Time between two looks that counts at most.
constexpr auto kMaxGap = std::chrono::milliseconds(500);

/// Maps the counters; null if that fails.
Count* mapped(int fd, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Count*>(memory);
}

}  // namespace

Result<Heartbeats> Heartbeats::make(int count) {
  FileDescriptor fd(::memfd_create("reshard-heartbeats", MFD_CLOEXEC));
  const auto size = static_cast<std::size_t>(count);
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(size * sizeof(Count))) != 0)
    return fail(Code::io, fmt::format("shared memory of a page: {}", std::strerror(errno)));
  Count* const counts = mapped(fd.get(), size * sizeof(Count));
  if (counts == nullptr)
    return fail(Code::io, fmt::format("shared memory of a page: {}", std::strerror(errno)));
  return Heartbeats(std::move(fd), {counts, size});
}

Heartbeats::Heartbeats(FileDescriptor fd, std::span<Count> counts)
    : fd_(std::move(fd)), counts_(counts), seen_(counts.size()) {}

Heartbeats::Heartbeats(Heartbeats&& other) noexcept
    : fd_(std::move(other.fd_)),
      counts_(std::exchange(other.counts_, {})),
      seen_(std::move(other.seen_)),
      last_(other.last_) {}

Heartbeats::~Heartbeats() {
  if (!counts_.empty()) ::munmap(counts_.data(), counts_.size_bytes());
}

void Heartbeats::look() {
  const auto now = Clock::now();
  const auto gap = std::min<Clock::duration>(now - std::exchange(last_, now), kMaxGap);
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const std::uint64_t count = counts_[i].load(std::memory_order_relaxed);
    seen_[i].silent = count == seen_[i].count ? seen_[i].silent + gap : Clock::duration();
    seen_[i].count = count;
  }
}

bool Heartbeats::silent_for(int index, std::chrono::duration<double> limit) const {
  return seen_[static_cast<std::size_t>(index)].silent >= limit;
}

void start_heartbeat(int fd, int index) {
  struct stat about{};
  const auto size = (static_cast<std::size_t>(index) + 1) * sizeof(Count);
  if (index < 0 || ::fstat(fd, &about) != 0 || std::cmp_less(about.st_size, size)) return;
  Count* const counts = mapped(fd, size);
  if (counts == nullptr) return;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([mine = counts + index] {
    for (;; std::this_thread::sleep_for(kEvery)) mine->fetch_add(1, std::memory_order_relaxed);
  }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace reshard::cli
