// SPDX-License-Identifier: Apache-2.0
#include "python/src/sessions/group.h"

#include <fmt/format.h>
#include <unistd.h>

namespace reshard::python {
namespace {

using namespace std::chrono_literals;

constexpr auto kSlice = 20ms;    ///< how often a wait looks for an interrupt.
constexpr auto kLastCalls = 1s;  ///< for calls in progress when the interpreter ends.

}  // namespace

Result<> InterruptibleControl::quiesce(Deadline deadline) {
  for (;;) {
    const Deadline slice = std::min(deadline, Deadline::after(kSlice));
    auto done = control_.quiesce(slice);
    if (done || done.error().code != Code::deadline || deadline.expired()) return done;
    if (!interrupted_) continue;
    unsettled_ = true;
    return done;
  }
}

Group::Group(ProcessGroup parts, std::string transport)
    : parts_(std::move(parts)),
      interruptible_(std::make_unique<InterruptibleControl>(*parts_.control)),
      transport_(std::move(transport)),
      rank_(parts_.control->rank()),
      size_(parts_.control->size()),
      process_(::getpid()) {}

Group::~Group() {
  if (!forked()) {
    leave();
    return;
  }
  // The threads and connections are the parent's.
  (void)parts_.transport.release();
  (void)parts_.control.release();
}

bool Group::forked() const { return ::getpid() != process_; }

void Group::check_process(const std::string& what) const {
  if (!forked()) return;
  raise(Code::invalid_argument,
        fmt::format("{}: belongs to process {}, from which this process ({}) was forked; join a "
                    "group here",
                    what, process_, ::getpid()));
}

std::string Group::text() const {
  return fmt::format("<reshard.ProcessGroup: rank {} of {}, {}{}>", rank_.value(), size_,
                     transport_, closed_ ? ", closed" : "");
}

void Group::abort(const std::string& reason) {
  check_process("abort()");
  if (!closed_) parts_.control->abort(reason);
}

void Group::interrupt() {
  if (!forked() && !closed_) interruptible_->interrupt("interrupted by a signal");
}

void Group::status() const {
  check_process("status()");
  if (closed_) raise(Code::invalid_argument, "the group is closed");
  unwrap(parts_.control->status());
}

std::vector<Rank> Group::lost() const {
  check_process("lost()");
  return parts_.control->lost();
}

Group::Use::Use(Group& group, const char* what) : group_(group) {
  group.check_process(what);
  const std::lock_guard lock(group.mutex_);
  if (group.closed_) raise(Code::invalid_argument, fmt::format("{}: the group is closed", what));
  if (group.busy_ != nullptr)
    raise(
        Code::invalid_argument,
        fmt::format("{}: {} is in progress; a group takes one call at a time", what, group.busy_));
  group.busy_ = what;
}

Group::Use::~Use() {
  const std::lock_guard lock(group_.mutex_);
  group_.busy_ = nullptr;
  group_.idle_.notify_all();
}

void Group::close() {
  if (closed_) return;
  check_process("close()");
  {
    const std::lock_guard lock(mutex_);
    if (busy_ != nullptr)
      raise(Code::invalid_argument,
            fmt::format("close(): {} is in progress; abort() ends it", busy_));
    closed_ = true;
  }
  const auto users = std::exchange(users_, {});
  for (GroupUser* user : users) user->shut();
  without_gil([&] { leave(); });
}

void Group::shut() {
  if (closed_ || forked()) return;
  without_gil([&] {
    std::unique_lock lock(mutex_);
    if (busy_ == nullptr) return;
    lock.unlock();
    interruptible_->interrupt("the interpreter ends");
    lock.lock();
    idle_.wait_for(lock, kLastCalls, [&] { return busy_ == nullptr; });
  });
  try {
    close();
  } catch (const Raised&) {
    // A call is still in progress. It keeps the memory that it uses until the process ends.
  }
}

void Group::settle() {
  if (closed_ || interpreter_has_ended() || transport_ != "inproc" || !interruptible_->unsettled())
    return;
  without_gil([&] { (void)parts_.control->quiesce(Deadline::after(2s)); });
}

void Group::leave() {
  closed_ = true;
  if (parts_.transport) parts_.transport->close();
  if (parts_.control) parts_.control->close();
}

}  // namespace reshard::python
