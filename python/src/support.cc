// SPDX-License-Identifier: Apache-2.0
#include "python/src/support.h"

#include <unistd.h>

#include <condition_variable>
#include <thread>

namespace reshard::python {
namespace {

std::atomic<bool> ended = false;
std::thread::id ending_thread;  ///< written before `ended`.

constexpr auto kPoll = std::chrono::milliseconds(20);

/// True in the only thread in which Python handles signals. @pre the GIL is held
bool is_main_thread() {
  const nb::object main = nb::module_::import_("threading").attr("main_thread")();
  return nb::cast<unsigned long>(main.attr("ident")) == PyThread_get_thread_ident();
}

/// Work on a thread of its own, which may call functions in the thread that waits for it.
class Worker {
 public:
  explicit Worker(const std::function<void()>& work)
      : thread_([this, &work] {
          current_ = this;
          try {
            work();
          } catch (...) {
            failure_ = std::current_exception();
          }
          const std::lock_guard lock(mutex_);
          done_ = true;
          changed_.notify_all();
        }) {}
  ~Worker() { thread_.join(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// The worker whose thread this is, or null.
  static Worker* current() { return current_; }

  /// Calls `f` in the thread that waits, and returns when it has returned. `f` does not throw.
  /// @pre this is current()
  void call_in_waiter(const std::function<void()>& f) {
    std::unique_lock lock(mutex_);
    wanted_ = &f;
    changed_.notify_all();
    changed_.wait(lock, [&] { return wanted_ == nullptr; });
  }

  /// Waits for the end of the work, or for the time to pass, and makes the calls that it asks for.
  /// True at the end.
  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [&] { return done_ || wanted_ != nullptr; });
    if (wanted_ != nullptr) {
      const std::function<void()>& wanted = *wanted_;
      lock.unlock();
      wanted();
      lock.lock();
      wanted_ = nullptr;
      changed_.notify_all();
    }
    return done_;
  }
  void wait() {
    while (!wait_for(kPoll)) continue;
  }
  /// The exception that the work threw, if any. @pre it has ended
  const std::exception_ptr& failure() const { return failure_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  const std::function<void()>* wanted_ = nullptr;
  std::exception_ptr failure_;
  static thread_local Worker* current_;
  std::thread thread_;  // last: it uses the others
};
thread_local Worker* Worker::current_ = nullptr;

/// Runs Python's signal handlers. The exception of one that raised, or null.
std::exception_ptr handle_signals() {
  const nb::gil_scoped_acquire acquired;
  if (PyErr_CheckSignals() == 0) return nullptr;
  return std::make_exception_ptr(nb::python_error());
}

}  // namespace

void rethrow_fatal() {
  if (PyErr_Occurred() == nullptr) return;
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0 ||
      PyErr_ExceptionMatches(PyExc_MemoryError) != 0)
    throw nb::python_error();
}

void clear_ordinary() {
  rethrow_fatal();
  PyErr_Clear();
}

bool is_fatal(const nb::python_error& error) {
  return !error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError);
}

void Unlocked::stop_if_ended() {
  while (interpreter_has_ended() && ending_thread != std::this_thread::get_id()) ::pause();
}

void end_interpreter() {
  ending_thread = std::this_thread::get_id();
  ended = true;
  // Threads that wait for the GIL already get it now, and not when Python would end them for it.
  const nb::gil_scoped_release released;
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool interpreter_has_ended() { return ended; }

void run_interruptibly(const std::function<void()>& work, const std::function<void()>& cancel) {
  if (!is_main_thread()) {
    const Unlocked unlocked;
    return work();
  }
  std::exception_ptr interrupt, failure;
  {
    const Unlocked unlocked;
    Worker worker(work);
    while (interrupt == nullptr && !worker.wait_for(kPoll)) interrupt = handle_signals();
    if (interrupt != nullptr) {
      if (cancel) {
        const nb::gil_scoped_acquire acquired;
        cancel();
      }
      worker.wait();
    }
    failure = worker.failure();
  }
  if (interrupt != nullptr) std::rethrow_exception(interrupt);
  if (failure != nullptr) std::rethrow_exception(failure);
}

bool Callback::call(const std::function<void(const nb::object&)>& f) {
  if (empty()) return true;
  if (failed_ || interpreter_has_ended()) return false;
  const auto call = [&] {
    const nb::gil_scoped_acquire acquired;
    try {
      f(function_);
    } catch (...) {
      failure_ = std::current_exception();
      failed_ = true;
    }
  };
  if (Worker* worker = Worker::current()) {
    worker->call_in_waiter(call);
  } else {
    call();
  }
  return !failed_;
}

void Callback::rethrow() {
  if (!failed_) return;
  failed_ = false;
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

ProgressReport::ProgressReport(const nb::object& argument)
    : ProgressReport(
          nb::cast<nb::tuple>(nb::module_::import_("reshard._progress").attr("start")(argument))) {}

ProgressReport::~ProgressReport() {
  if (close_.is_none()) return;
  try {
    close_();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("closing a progress bar");
  }
}

Progress ProgressReport::progress() {
  return [this](std::string_view phase, Index done, Index total) {
    if (cancelled_) return false;
    bool go_on = true;
    const bool called = callback_.call([&](const nb::object& function) {
      go_on = !function(phase, done, total).is(nb::bool_(false));
    });
    return called && go_on;
  };
}

}  // namespace reshard::python
