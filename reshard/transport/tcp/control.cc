// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/control.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "reshard/transport/checks.h"
#include "reshard/transport/deadline_wait.h"

namespace reshard::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kTallyEvery = 100ms;
constexpr std::string_view kGatherInto = "all_gather_into";
/// Most memory of a request that is kept for the next one. Bytes.
constexpr std::size_t kMaxRequest = 4096;
/// How long the coordinator may take to name the missing ranks, and to receive a goodbye.
constexpr auto kCoordinatorTimeout = 1s;
/// The same where the caller has waited long enough: in a quiesce, which only follows an error, and
/// once the coordinator has not answered, because its process was stopped.
constexpr auto kLastTimeout = 500ms;
/// How often gives_up is called while ranks are missing.
constexpr auto kAskEvery = 50ms;

/// The code of a `failed` frame, which may come from another version with other enumerators.
Code code_of(std::uint64_t value) {
  return value <= static_cast<std::uint64_t>(Code::aborted) ? static_cast<Code>(value)
                                                            : Code::aborted;
}

}  // namespace

TcpControl::TcpControl(Rank rank, int size, Channel channel, WakeFd wake_fd)
    : rank_(rank),
      size_(size),
      socket_(std::move(channel.socket)),
      wake_fd_(std::move(wake_fd)),
      writer_(channel.keys.from_rank),
      reader_(channel.keys.from_coordinator) {
  thread_ = thread_without_signals([this] { listen(); });
}

std::optional<Result<>> TcpControl::enter(const Frame& join, Deadline deadline,
                                          const std::function<std::string()>& gives_up) {
  post(join);
  std::unique_lock lock(mutex_);
  while (gives_up && !is_answered_ && !coordinator_gone_ && !deadline.expired()) {
    if (std::string reason = gives_up(); !reason.empty()) {
      // If the group has formed meanwhile, the other ranks must learn of it.
      lock.unlock();
      abort(reason);
      return Result<>(fail(Code::aborted, std::move(reason)));
    }
    changed_.wait_for(lock, kAskEvery);
  }
  auto outcome = answer(lock, Kind::join, join.id, "join", deadline);
  if (outcome) return Result<>();
  if (coordinator_gone_ && !is_answered_) return std::nullopt;
  return Result<>(tl::unexpected(std::move(outcome).error()));
}

Result<> TcpControl::usable(std::string_view what) const {
  if (!closed_) return {};
  return fail(Code::invalid_argument,
              fmt::format("{} on rank {} after close()", what, rank_.value()));
}

Result<std::vector<std::vector<std::byte>>> TcpControl::all_gather(std::span<const std::byte> mine,
                                                                   Deadline deadline) {
  std::unique_lock lock(mutex_);
  RESHARD_TRY(ask(lock, Kind::meet, "all_gather", mine, deadline));
  const std::vector<std::byte> bytes = std::move(answer_.bytes);
  lock.unlock();
  return parse_parts(bytes, static_cast<std::size_t>(size_));
}

Result<> TcpControl::all_gather_into(std::span<const std::byte> mine, std::span<std::byte> all,
                                     Deadline deadline) {
  const auto ranks = static_cast<std::size_t>(size_);
  if (all.size() % ranks != 0 || all.size() / ranks != mine.size())
    return tl::unexpected(wrong_output_size(all.size(), ranks, mine.size()));
  std::unique_lock lock(mutex_);
  RESHARD_TRY(ask(lock, Kind::meet, kGatherInto, mine, deadline));
  return parse_equal_parts(answer_.bytes, ranks, mine.size(), all);
}

Result<> TcpControl::barrier(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return ask(lock, Kind::meet, kBarrier, {}, deadline);
}

Result<> TcpControl::quiesce(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return ask(lock, Kind::quiesce, "quiesce", {}, deadline);
}

Result<> TcpControl::ask(std::unique_lock<std::mutex>& lock, Kind kind, std::string_view what,
                         std::span<const std::byte> mine, Deadline deadline) {
  if (mine.size() > kMaxFrameBytes - 4096) {
    return fail(Code::invalid_argument, fmt::format("{} of {} bytes: at most {} MiB over all ranks",
                                                    what, mine.size(), kMaxFrameBytes >> 20));
  }
  RESHARD_TRY(usable(what));
  if (kind == Kind::meet && aborted_) return tl::unexpected(abort_error_);
  if (coordinator_gone_) return tl::unexpected(coordinator_gone_error(what));
  const std::uint64_t id = ++last_id_;
  is_answered_ = false;
  lock.unlock();
  request_.kind = kind;
  request_.id = id;
  request_.text = what;
  request_.bytes.assign(mine.begin(), mine.end());
  post(request_);
  forget(request_.bytes, kMaxRequest);
  lock.lock();
  return answer(lock, kind, id, what, deadline);
}

Result<> TcpControl::answer(std::unique_lock<std::mutex>& lock, Kind kind, std::uint64_t id,
                            std::string_view what, Deadline deadline) {
  const auto over = [&] {
    return is_answered_ || coordinator_gone_ || closed_ || (kind == Kind::meet && aborted_);
  };
  wait_for_answer(lock, kind, id, deadline, over);
  if (is_answered_ && answer_.kind == Kind::done) return {};
  if (is_answered_) return fail(code_of(answer_.a), answer_.text);
  if (kind == Kind::meet && aborted_) return tl::unexpected(abort_error_);
  RESHARD_TRY(usable(what));
  if (coordinator_gone_) return tl::unexpected(coordinator_gone_error(what));
  return fail(Code::deadline,
              fmt::format("{}: deadline passed, and rank 0, which knows who is missing, does "
                          "not answer",
                          what));
}

/// Waits until over(), at most until shortly after the deadline. A coordinator that is silent gets
/// no more time for each request that follows.
template <class Over>
void TcpControl::wait_for_answer(std::unique_lock<std::mutex>& lock, Kind kind, std::uint64_t id,
                                 Deadline deadline, Over over) {
  if (coordinator_silent_) deadline = std::min(deadline, Deadline::after(kLastTimeout));
  if (wait_until(changed_, lock, deadline, over) || coordinator_silent_) return;
  // The coordinator knows who is missing; or it may just have sent the answer.
  lock.unlock();
  post({Kind::leave, id, 0, 0, "", {}});
  lock.lock();
  const std::chrono::milliseconds more = kind == Kind::quiesce ? kLastTimeout : kCoordinatorTimeout;
  coordinator_silent_ = !changed_.wait_for(lock, more, over);
}

Error TcpControl::coordinator_gone_error(std::string_view what) const {
  if (what != "quiesce") {
    if (aborted_) return abort_error_;
    return {Code::aborted, fmt::format("{}: rank 0 closed the control plane", what)};
  }
  const auto lives = [&](std::size_t r) {
    const Rank rank(static_cast<Rank::rep>(r));
    return rank != rank_ && std::ranges::find(lost_, rank) == lost_.end();
  };
  return {Code::aborted,
          fmt::format("quiesce: the process of rank 0, which served the control plane, has ended; "
                      "{} may still use this rank's memory",
                      list_ranks(static_cast<std::size_t>(size_), lives))};
}

void TcpControl::abort(std::string_view reason) {
  // set_aborted() wakes threads in collectives, which may then send a quiesce. The coordinator must
  // receive the abort first, so the lock keeps them waiting until its frame is queued.
  const std::lock_guard lock(mutex_);
  if (closed_ || !set_aborted(fmt::format("rank {} aborted: {}", rank_.value(), reason))) return;
  post({Kind::abort, 0, 0, 0, std::string(reason), {}});
}

bool TcpControl::set_aborted(std::string text) {
  if (aborted_) return false;
  abort_error_ = {Code::aborted, std::move(text)};
  aborted_.store(true, std::memory_order_release);
  changed_.notify_all();
  return true;
}

Result<> TcpControl::status() const {
  if (!aborted_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  return tl::unexpected(abort_error_);
}

std::vector<Rank> TcpControl::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void TcpControl::add_lost(Rank rank) {
  const auto at = std::ranges::lower_bound(lost_, rank);
  if (at == lost_.end() || *at != rank) lost_.insert(at, rank);
}

void TcpControl::report(std::int64_t amount) {
  if (aborted_.load(std::memory_order_relaxed) || closing_.load(std::memory_order_relaxed)) return;
  mine_.fetch_add(amount);
  if (!tally_due_.exchange(true)) wake_fd_.notify();
}

std::int64_t TcpControl::reported() const {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(mine_.load()) +
                                   static_cast<std::uint64_t>(others_.load()));
}

void TcpControl::post(const Frame& frame) {
  {
    const std::lock_guard lock(send_mutex_);
    writer_.queue(frame);
    if (writer_.flush(socket_.get()) == Flow::open && writer_.idle()) return;
  }
  wake_fd_.notify();
}

bool TcpControl::flush() {
  const std::lock_guard lock(send_mutex_);
  (void)writer_.flush(socket_.get());
  return writer_.idle();
}

void TcpControl::send_tally(Clock::time_point now) {
  if (!tally_due_ || now < next_tally_) return;
  next_tally_ = now + kTallyEvery;
  tally_due_ = false;
  post({Kind::tally, 0, static_cast<std::uint64_t>(mine_.load()), 0, "", {}});
}

void TcpControl::listen() {
  bool sent_end = false;
  for (bool here = true; here;) {
    Clock::time_point now = Clock::now();
    send_tally(now);
    const bool idle = flush();
    if (closing_ && closing_end_ == Clock::time_point::max())
      closing_end_ = now + (silent() ? Clock::duration::zero() : kCoordinatorTimeout);
    if (closing_ && idle && !std::exchange(sent_end, true)) ::shutdown(socket_.get(), SHUT_WR);
    if (now >= closing_end_) break;
    std::array<pollfd, 2> polled{
        pollfd{wake_fd_.fd(), POLLIN, 0},
        pollfd{socket_.get(), static_cast<short>(idle ? POLLIN : POLLIN | POLLOUT), 0}};
    if (::poll(polled.data(), polled.size(), listen_timeout(now)) <= 0) continue;
    if (polled[0].revents != 0) wake_fd_.clear();
    if ((polled[1].revents & ~POLLOUT) != 0) {
      here = reader_.read(socket_.get(), kMaxFrameBytes,
                          [this](Frame& frame) { return on_frame(frame); }) == Flow::open;
    }
  }
  on_coordinator_gone();
}

bool TcpControl::silent() const {
  const std::lock_guard lock(mutex_);
  return coordinator_silent_;
}

int TcpControl::listen_timeout(Clock::time_point now) const {
  Clock::time_point next = closing_end_;
  if (tally_due_) next = std::min(next, next_tally_);
  return milliseconds_until(next, now);
}

bool TcpControl::on_frame(Frame& frame) {
  if (frame.kind == Kind::tally) {
    others_ = static_cast<std::int64_t>(frame.a);
    return true;
  }
  const std::lock_guard lock(mutex_);
  coordinator_silent_ = false;
  switch (frame.kind) {
    case Kind::done:
    case Kind::failed:
      if (frame.id == last_id_) {
        std::swap(answer_, frame);
        is_answered_ = true;
      }
      break;
    case Kind::aborted: (void)set_aborted(std::move(frame.text)); break;
    case Kind::lost:
      if (frame.a >= static_cast<std::uint64_t>(size_)) return false;
      add_lost(Rank(static_cast<Rank::rep>(frame.a)));
      break;
    default: return false;
  }
  changed_.notify_all();
  return true;
}

void TcpControl::on_coordinator_gone() {
  // A coordinator that ends waits briefly for its ranks to disconnect.
  ::shutdown(socket_.get(), SHUT_RDWR);
  const std::lock_guard lock(mutex_);
  coordinator_gone_ = true;
  changed_.notify_all();
  const bool left = std::ranges::find(lost_, Rank{0}) != lost_.end();
  if (closed_ || left) return;
  add_lost(Rank{0});
  (void)set_aborted("rank 0 died (the connection to its process was lost)");
}

void TcpControl::close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    changed_.notify_all();
  }
  post({Kind::bye, 0, 0, 0, "", {}});
  closing_ = true;
  wake_fd_.notify();
  thread_.join();
  ::shutdown(socket_.get(), SHUT_RDWR);
  if (coordinator_) keep_serving(std::move(coordinator_));
}

}  // namespace reshard::tcp
