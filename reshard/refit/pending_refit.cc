// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/pending_refit.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "reshard/transport/deadline_wait.h"

namespace reshard {

struct PendingRefit::Run {
  std::mutex mutex;
  std::condition_variable changed;
  bool sources_free = false, done = false;
  std::optional<Result<SessionReport>> ended;
  std::thread thread;

  ~Run() {
    if (!thread.joinable()) return;
    // The thread itself may hold the last reference.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }

  void free_sources() {
    const std::lock_guard lock(mutex);
    sources_free = true;
    changed.notify_all();
  }

  void end() {
    const std::lock_guard lock(mutex);
    sources_free = done = true;
    changed.notify_all();
  }

  bool is(const bool& reached) {
    const std::lock_guard lock(mutex);
    return reached;
  }

  bool wait(const bool& reached, Deadline deadline) {
    std::unique_lock lock(mutex);
    return wait_until(changed, lock, deadline, [&] { return reached; });
  }
};

Result<PendingRefit> PendingRefit::start(Work work, bool sources_free,
                                         std::function<void()> on_end) {
  auto run = std::make_shared<Run>();
  run->sources_free = sources_free;
  try {
    // Nobody looks at `thread` before the last reference goes.
    run->thread = std::thread([run, work = std::move(work), on_end = std::move(on_end)] {
      run->ended = work([&] { run->free_sources(); });
      if (on_end) on_end();
      run->end();
    });
  } catch (const std::system_error& error) {
    return fail(Code::io, fmt::format("no thread for the refit: {}", error.what()));
  }
  return PendingRefit(std::move(run));
}

bool PendingRefit::sources_free() const { return run_->is(run_->sources_free); }
bool PendingRefit::wait_sources_free(Deadline deadline) const {
  return run_->wait(run_->sources_free, deadline);
}
bool PendingRefit::done() const { return run_->is(run_->done); }
bool PendingRefit::wait(Deadline deadline) const { return run_->wait(run_->done, deadline); }
Result<SessionReport> PendingRefit::result() const {
  (void)wait(Deadline::never());
  return *run_->ended;
}

}  // namespace reshard
