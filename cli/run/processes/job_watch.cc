// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes/job_watch.h"

#include <chrono>

#include "cli/interrupt.h"

namespace reshard::cli {

JobWatch::JobWatch(ControlPlane& control, bool draws, TestKill kill)
    : control_(control),
      kill_(kill),
      draws_(draws),
      thread_([this](const std::stop_token& stop) { live(stop); }) {}

JobWatch::~JobWatch() {
  thread_.request_stop();
  thread_.join();
}

void JobWatch::begin(std::string_view phase, Index bytes, Index times) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  bytes_ = bytes;
  total_ = bytes * times;
  before_ = control_.reported();
  if (draws_) bar_ = std::make_unique<ProgressBar>();
}

void JobWatch::wipe() {
  const std::lock_guard lock(mutex_);
  bar_.reset();
}

Progress JobWatch::reporting() {
  return [this, reported = Index{0}](std::string_view, Index done, Index) mutable {
    control_.report(done - reported);
    reported = done;
    return goes_on();
  };
}

Progress JobWatch::stopping() {
  return [this](std::string_view, Index done, Index total) {
    if (2 * done >= total && total > 0) kill_.at(TestKill::Point::middle);
    return goes_on();
  };
}

Result<> JobWatch::end() const { return control_.status(); }

std::vector<Rank> JobWatch::lost() {
  look();
  const std::lock_guard lock(mutex_);
  return lost_;
}

bool JobWatch::goes_on() {
  // Before any thread sees the job cancelled: the group must learn of the signal as the cause.
  if (interrupted()) control_.abort(interruption().message);
  return control_.status().has_value();
}

void JobWatch::look() {
  const bool has_ended = !goes_on();
  const std::lock_guard lock(mutex_);
  if (!ended_ && has_ended) {
    ended_ = true;
    lost_ = control_.lost();
  }
  const Index done = control_.reported() - before_;
  if (bar_) bar_->progress()(phase_, std::min(done, total_), total_);
  // A rank that only sends has no bytes of its own to count.
  if (phase_ == "refit" && 2 * done >= bytes_) kill_.at(TestKill::Point::middle);
}

void JobWatch::live(const std::stop_token& stop) {
  const auto pause = std::chrono::milliseconds(kill_.waits_for(TestKill::Point::middle) ? 1 : 50);
  while (!stop.stop_requested()) {
    look();
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop, pause, [] { return false; });
  }
}

}  // namespace reshard::cli
