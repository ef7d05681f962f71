// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>

#include "reshard/exec/worker_pool.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/memory/stream_copy.h"
#include "reshard/refit/session_report.h"

namespace reshard {
namespace {

/// Beyond the caches of any machine, together.
constexpr Index kBytes = Index{64} << 20;
constexpr int kTurns = 4;

/// The best of some turns; 0 where there is no memory for one.
double measure(int threads) {
  using Clock = std::chrono::steady_clock;
  WorkerPool pool(threads);
  auto from = HostBuffer::allocate(kBytes, {1}), to = HostBuffer::allocate(kBytes, {1});
  if (!from || !to) return 0;
  const Index each = kBytes / pool.size();
  auto copy = [&](int worker) {
    const Index begin = each * worker;
    const Index end = worker + 1 == pool.size() ? kBytes : begin + each;
    stream_copy(to->data() + begin, from->data() + begin, static_cast<std::size_t>(end - begin));
  };
  double best = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = Clock::now();
    pool.run(copy);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, static_cast<double>(kBytes) / seconds.count() * 1e-9);
  }
  return best;
}

}  // namespace

double copy_ceiling(int threads) {
  static std::mutex mutex;
  static std::map<int, double> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(threads);
  if (found != known.end() && found->second > 0) return found->second;
  return known[threads] = measure(threads);
}

}  // namespace reshard
