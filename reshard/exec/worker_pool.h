// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace reshard {

/// Threads that wait for the next parallel loop. A loop allocates nothing. Used from one thread at
/// a time.
class WorkerPool {
 public:
  /// `threads` workers, the calling thread being the first; 0: one per core that this process may
  /// use.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(worker) once on each worker, 0 on this thread, and returns when all have returned.
  template <class Body>
  void run(Body& body) {
    start([](void* b, int worker) { (*static_cast<Body*>(b))(worker); }, &body);
  }

 private:
  using Call = void (*)(void*, int);
  void start(Call call, void* body);
  void serve(int worker);

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Call call_ = nullptr;
  void* body_ = nullptr;
  std::size_t round_ = 0, busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace reshard
