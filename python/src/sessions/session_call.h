// SPDX-License-Identifier: Apache-2.0
// A collective call of a session, and what its callbacks raised.
#pragma once

#include <exception>
#include <string>

#include "python/src/sessions/session.h"
#include "python/src/support.h"

namespace reshard::python {

/// One line of what was thrown, for other ranks.
std::string text_of(const std::exception_ptr& thrown);
/// Adds a note to the exception that a callback raised: what became of the call.
void add_note(const std::exception_ptr& thrown, const std::string& note);

/// The callbacks of a collective call that is in progress, and what they raised.
class TensorSession::Call {
 public:
  Call(TensorSession& session, const nb::object& progress)
      : session_(session), on_phase_(session.on_phase_), progress_(progress) {
    session_.call_ = this;
  }
  ~Call() { session_.call_ = nullptr; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Result<> enter(SessionPhase phase);
  Progress& progress() { return progress_function_; }
  void cancel() {
    progress_.cancel();
    session_.group_->interrupt();
  }
  /// Throws what a callback raised, with the library's error as a note; else nothing.
  void rethrow(const Raised& raised) {
    try {
      on_phase_.rethrow();
      progress_.rethrow();
    } catch (nb::python_error&) {
      add_note(std::current_exception(), raised.error().message);
      throw;
    }
  }

 private:
  TensorSession& session_;
  Callback on_phase_;
  ProgressReport progress_;
  Progress progress_function_ = progress_.progress();
};

}  // namespace reshard::python
