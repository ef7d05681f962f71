// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace reshard {

/// The number of cores that this process may use, at least 1.
int usable_cores();

/// Threads that run parallel loops. A loop allocates nothing. Not thread-safe.
class WorkerPool {
 public:
  /// `threads` workers, of which the calling thread is one; 0: one per core that this process may
  /// use.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(worker) once on each worker, with 0 on this thread. Returns when all calls have.
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
