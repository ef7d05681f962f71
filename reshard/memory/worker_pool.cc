// SPDX-License-Identifier: Apache-2.0
#include "reshard/memory/worker_pool.h"

#include <sched.h>

#include <algorithm>

namespace reshard {

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

WorkerPool::WorkerPool(int threads) {
  const int n = threads > 0 ? threads : usable_cores();
  workers_.reserve(static_cast<std::size_t>(n - 1));
  for (int i = 1; i < n; ++i) workers_.emplace_back([this, i] { serve(i); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void WorkerPool::start(Call call, void* body) {
  {
    std::lock_guard lock(mutex_);
    call_ = call;
    body_ = body;
    busy_ = workers_.size();
    ++round_;
  }
  wake_.notify_all();
  call(body, 0);
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return busy_ == 0; });
}

void WorkerPool::serve(int worker) {
  std::size_t seen = 0;
  while (true) {
    Call call = nullptr;
    void* body = nullptr;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      call = call_;
      body = body_;
    }
    call(body, worker);
    std::lock_guard lock(mutex_);
    if (--busy_ == 0) idle_.notify_one();
  }
}

}  // namespace reshard
