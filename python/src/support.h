// SPDX-License-Identifier: Apache-2.0
// What every file of the binding uses; also its precompiled header.
#pragma once

#include <nanobind/make_iterator.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/reshard.h"

namespace reshard::python {

namespace nb = nanobind;

/// An Error on its way to Python, where it becomes a reshard.Error of the class for its code, with
/// the same message. May be thrown without the GIL.
class Raised : public std::exception {
 public:
  explicit Raised(Error error) : error_(std::move(error)) {}
  const Error& error() const { return error_; }
  const char* what() const noexcept override { return error_.message.c_str(); }

 private:
  Error error_;
};

/// Throws an Error of this code.
[[noreturn]] void raise(Code code, std::string message);

/// The value of a Result. Throws its error. Needs no GIL.
template <class T>
T unwrap(Result<T> result) {
  if (!result) throw Raised(std::move(result).error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Throws the Python exception that is set if it must reach the caller as it is: one that is no
/// Exception (KeyboardInterrupt, SystemExit), or MemoryError. Nothing for any other, or for none.
void rethrow_fatal();
/// The same, and clears any other.
void clear_ordinary();
/// True for such an exception.
bool is_fatal(const nb::python_error& error);

/// Makes Python classes of Errors: every exception `Raised` becomes one. Called once.
void register_errors(nb::module_& m);

/// Releases the GIL for its lifetime. If the interpreter has ended by then, the thread stops there:
/// Python would end it by unwinding its stack, which C++ cannot survive. @pre the GIL is held
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    stop_if_ended();
    PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  static void stop_if_ended();
  PyThreadState* state_;
};

/// The interpreter ends: from now on no other thread of ours takes the GIL. Called by the thread
/// that ends it, which holds the GIL.
void end_interpreter();
bool interpreter_has_ended();

/// Runs `work` without the GIL and returns its result. @pre the GIL is held
template <class F>
auto without_gil(F&& work) {
  const Unlocked unlocked;
  return std::forward<F>(work)();
}

/// Runs `work` without the GIL, while signals are handled as Python does: a handler that raises
/// (KeyboardInterrupt on Ctrl-C) causes a call of `cancel`, at most 20 ms after the signal, and its
/// exception is thrown when `work` has returned. `cancel` is called once at most, with the GIL held
/// and from another thread than that of `work`; it must make `work` return soon. It may be empty if
/// `work` cannot be cancelled.
///
/// In Python's main thread `work` runs on a thread of its own, because only the main thread may
/// handle signals; elsewhere in the calling thread. @pre the GIL is held
void run_interruptibly(const std::function<void()>& work, const std::function<void()>& cancel);

/// The same, with the result of `work`, which throws `Raised` on error.
template <class F>
auto interruptible(F&& work, const std::function<void()>& cancel = {}) {
  using T = std::invoke_result_t<F>;
  if constexpr (std::is_void_v<T>) {
    run_interruptibly([&] { work(); }, cancel);
  } else {
    std::optional<T> result;
    run_interruptibly([&] { result.emplace(work()); }, cancel);
    return std::move(*result);
  }
}

/// Calls a Python callback from C++, on any thread and without the GIL: in the thread that called
/// interruptible(), if this is the one of its `work`. The first exception that it raises is kept,
/// and rethrow() throws it, whole, in the thread of the caller; after that the callback is not
/// called again.
class Callback {
 public:
  /// `function` may be None: then calls do nothing. @pre the GIL is held
  explicit Callback(nb::object function) : function_(std::move(function)) {}
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  bool empty() const { return !function_.is_valid() || function_.is_none(); }
  /// Calls `f(function)` with the GIL. False if that raised, or an earlier call did.
  bool call(const std::function<void(const nb::object& function)>& f);
  /// Throws the exception of the callback, if there was one. @pre the GIL is held
  void rethrow();

 private:
  nb::object function_;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;  ///< written before `failed_`.
};

/// The `progress` argument of long operations: a callable (phase, done, total), True, False or None
/// (reshard/_progress.py). Cancels the operation if the callable raises or returns False, or if
/// cancel() was called.
class ProgressReport {
 public:
  /// @pre the GIL is held, as for all but cancel()
  explicit ProgressReport(const nb::object& argument);
  ~ProgressReport();
  ProgressReport(const ProgressReport&) = delete;
  ProgressReport& operator=(const ProgressReport&) = delete;

  /// For the options of an operation; refers to this object.
  Progress progress();
  /// Thread-safe, and needs no GIL.
  void cancel() { cancelled_ = true; }
  /// Throws what the callable raised.
  void rethrow() { callback_.rethrow(); }

 private:
  explicit ProgressReport(const nb::tuple& call_and_close)
      : callback_(call_and_close[0]), close_(call_and_close[1]) {}

  Callback callback_;
  nb::object close_;  ///< called at the end; may be None.
  std::atomic<bool> cancelled_ = false;
};

/// Runs a long operation with progress: Ctrl-C, or an exception of the callable, cancels it and is
/// then thrown. `work` gets the Progress for its options. @pre the GIL is held
template <class F>
auto with_progress(const nb::object& argument, F&& work) {
  ProgressReport report(argument);
  try {
    auto result = interruptible([&] { return work(report.progress()); }, [&] { report.cancel(); });
    report.rethrow();  // of the last call, which came too late to cancel
    return result;
  } catch (const Raised&) {
    report.rethrow();
    throw;
  }
}

}  // namespace reshard::python

namespace nanobind::detail {

// They hold mapped files, which std::vector's traits do not tell.
template <>
struct is_copy_constructible<reshard::Checkpoint> : std::false_type {};
template <>
struct is_copy_constructible<reshard::Model> : std::false_type {};
template <>
struct is_copy_constructible<reshard::SynthesizeReport> : std::false_type {};

}  // namespace nanobind::detail
