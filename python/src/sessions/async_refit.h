// SPDX-License-Identifier: Apache-2.0
// reshard.PendingRefit: a refit that runs while Python goes on.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "python/src/support.h"
#include "reshard/refit/pending_refit.h"

namespace reshard::python {

class TensorSession;

/// The class reshard.PendingRefit: a refit in a thread of its own. Everything needs the GIL, which
/// waits release. What Python holds keeps the session alive.
class AsyncRefit {
 public:
  bool done() const { return refit_->done(); }
  bool sources_free() const { return refit_->sources_free(); }
  /// Waits until it is done, or its sources are free; at most these seconds, if any. False if it is
  /// not by then. Ctrl-C ends the wait, and not the refit.
  bool wait(std::optional<double> seconds) const;
  bool wait_sources_free(std::optional<double> seconds) const;
  /// Waits for the end; throws what it failed with.
  SessionReport result(std::optional<double> seconds);
  bool failed() const { return raised_.is_valid() || failure_ != nullptr; }
  /// Throws what it failed with. May be called several times. @pre failed()
  void rethrow() const;
  std::string text() const;

  int traverse(visitproc visit, void* arg) const;
  void clear() { raised_.reset(); }

 private:
  friend class TensorSession;
  TensorSession* session_ = nullptr;  ///< null once the session has taken the result.
  std::optional<PendingRefit> refit_;
  std::int64_t version_ = -1;
  std::optional<SessionReport> report_;
  nb::object raised_;           ///< by a callback, if that ended it.
  std::exception_ptr failure_;  ///< else why it failed, if it did.
};

}  // namespace reshard::python
