// SPDX-License-Identifier: Apache-2.0
#include "python/src/sessions/async_refit.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "python/src/sessions/session.h"
#include "python/src/sessions/session_call.h"

namespace reshard::python {
namespace {

bool wait_for(std::optional<double> seconds, const std::function<bool(Deadline)>& wait) {
  const Deadline deadline =
      seconds ? Deadline::after(std::chrono::duration<double>(*seconds)) : Deadline::never();
  // In slices, since nothing else may end the wait.
  std::atomic<bool> left = false;
  return interruptible(
      [&] {
        while (!left) {
          if (wait(std::min(deadline, Deadline::after(std::chrono::milliseconds(20))))) return true;
          if (deadline.expired()) return false;
        }
        return false;
      },
      [&] { left = true; });
}

}  // namespace

std::shared_ptr<AsyncRefit> TensorSession::refit_async(std::int64_t version,
                                                       const nb::object& progress,
                                                       const nb::object& stream) {
  auto use = std::make_unique<Group::Use>(*group_, "refit_async()");
  take_result();
  (void)session();
  async_refused_ = look_again(stream);
  async_call_ = std::make_unique<Call>(*this, progress);
  async_use_ = std::move(use);
  auto started =
      without_gil([&] { return session_->refit_async(version, [this] { async_use_.reset(); }); });
  if (!started) {
    async_call_.reset();
    async_use_.reset();
    (void)unwrap(std::move(started));
  }
  async_ = std::make_shared<AsyncRefit>();
  async_->session_ = this;
  async_->refit_ = *std::move(started);
  async_->version_ = version;
  return async_;
}

void TensorSession::take_result() {
  if (async_ == nullptr) return;
  const std::shared_ptr<AsyncRefit> ended = async_;
  without_gil([&] { (void)ended->refit_->wait(Deadline::never()); });
  if (ended != async_) return;  // Another thread took it meanwhile.
  async_ = nullptr;
  const std::unique_ptr<Call> call = std::move(async_call_);
  try {
    run(*call, std::exchange(async_refused_, nullptr),
        [&] { ended->report_ = report_ = unwrap(ended->refit_->result()); });
    if (report_->plan_seconds > 0) planned_ = sides_;
  } catch (const nb::python_error& error) {
    ended->raised_ = nb::borrow(error.value());
  } catch (...) {
    ended->failure_ = std::current_exception();
  }
  ended->session_ = nullptr;
}

const std::optional<SessionReport>& TensorSession::report() {
  if (async_ != nullptr && async_->done()) take_result();
  return report_;
}

bool AsyncRefit::wait(std::optional<double> seconds) const {
  return wait_for(seconds, [&](Deadline until) { return refit_->wait(until); });
}

bool AsyncRefit::wait_sources_free(std::optional<double> seconds) const {
  return wait_for(seconds, [&](Deadline until) { return refit_->wait_sources_free(until); });
}

SessionReport AsyncRefit::result(std::optional<double> seconds) {
  if (!wait(seconds))
    raise(Code::deadline,
          fmt::format("the refit of version {} has not ended; it goes on", version_));
  if (session_ != nullptr) session_->take_result();
  // Another thread may be about to.
  while (session_ != nullptr) without_gil([] { std::this_thread::yield(); });
  if (failed()) rethrow();
  return *report_;
}

void AsyncRefit::rethrow() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised_.ptr())), raised_.ptr());
  throw nb::python_error();
}

int AsyncRefit::traverse(visitproc visit, void* arg) const {
  Py_VISIT(raised_.ptr());
  return 0;
}

std::string AsyncRefit::text() const {
  return fmt::format("<reshard.PendingRefit: version {}, {}>", version_,
                     done()           ? "done"
                     : sources_free() ? "sources free"
                                      : "sources in use");
}

}  // namespace reshard::python
