// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/coordinator.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "reshard/transport/deadline_wait.h"
#include "reshard/transport/tcp/fd_socket.h"

namespace reshard::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kTalliesEvery = 100ms;
constexpr auto kAcceptAgain = 100ms;
constexpr auto kEvictAfter = 250ms;
/// How long ranks may take to receive their last frames when the coordinator ends.
constexpr auto kFarewell = 1s;

}  // namespace

Coordinator::Coordinator(const Options& options, FileDescriptor listener, FileDescriptor first,
                         WakeFd wake_fd)
    : options_(options),
      listener_(std::move(listener)),
      wake_fd_(std::move(wake_fd)),
      group_(options.size,
             [this](Rank to, const Frame& frame, FrameBody body) {
               if (Connection* c = by_rank_[to.index()]; c != nullptr)
                 c->writer->queue(frame, std::move(body));
             }),
      by_rank_(static_cast<std::size_t>(options.size), nullptr) {
  add(std::move(first), Clock::now());
  thread_ = thread_without_signals([this] { run(); });
}

Coordinator::~Coordinator() {
  stop_.store(true, std::memory_order_release);
  wake_fd_.notify();
  thread_.join();
}

bool Coordinator::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

bool Coordinator::wait_finished(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return finished_ || parting_ < deadline; };
  if (!wait_until(changed_, lock, deadline, over)) return false;
  return wait_until(changed_, lock, std::min(deadline, parting_), [&] { return finished_; });
}

void Coordinator::notice_abort() {
  if (!group_.aborted()) return;
  const std::lock_guard lock(mutex_);
  if (!parting_.is_never()) return;
  parting_ = Deadline::after(kPartingTimeout);
  changed_.notify_all();
}

void Coordinator::run() {
  for (;;) {
    const Clock::time_point now = Clock::now();
    notice_abort();
    if (group_.started()) listener_ = {};
    if (group_.finished() || stop_.load(std::memory_order_acquire)) retire(now);
    send_tallies(now);
    flush_and_sweep(now);
    if (now >= end_ || (end_ != Clock::time_point::max() && connections_.empty())) break;
    poll_all(now);
  }
  connections_.clear();
  const std::lock_guard lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

void Coordinator::retire(Clock::time_point now) {
  if (end_ != Clock::time_point::max()) return;
  end_ = now + kFarewell;
  listener_ = {};
  for (const auto& c : connections_) {
    if (c->rank) {
      part(*c);
    } else if (!c->parting) {
      c->over = true;
    }
  }
}

void Coordinator::poll_all(Clock::time_point now) {
  polled_.clear();
  polled_.push_back({wake_fd_.fd(), POLLIN, 0});
  polled_.push_back({may_accept(now) ? listener_.get() : -1, POLLIN, 0});
  for (const auto& c : connections_) {
    const bool writes = c->writer && !c->writer->idle();
    polled_.push_back({c->socket.get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
  }
  if (::poll(polled_.data(), polled_.size(), poll_timeout(now)) <= 0) return;
  if (polled_[0].revents != 0) wake_fd_.clear();
  for (std::size_t i = 2; i < polled_.size(); ++i)
    if ((polled_[i].revents & ~POLLOUT) != 0) read(*connections_[i - 2]);
  if (polled_[1].revents != 0) accept_one(Clock::now());
}

int Coordinator::poll_timeout(Clock::time_point now) const {
  Clock::time_point next = end_;
  for (const auto& c : connections_) {
    if (c->rank) continue;
    next = std::min(next, c->since + options_.handshake_timeout);
    if (num_unauthenticated_ >= options_.max_unauthenticated)
      next = std::min(next, std::max(c->since + kEvictAfter, now + 1ms));
  }
  if (listener_ && now < next_accept_) next = std::min(next, next_accept_);
  if (group_.tallies_due()) next = std::min(next, std::max(next_tallies_, now + 1ms));
  return milliseconds_until(next, now);
}

bool Coordinator::may_accept(Clock::time_point now) const {
  if (!listener_ || now < next_accept_) return false;
  if (num_unauthenticated_ < options_.max_unauthenticated) return true;
  return std::ranges::any_of(
      connections_, [&](const auto& c) { return !c->rank && now - c->since >= kEvictAfter; });
}

void Coordinator::accept_one(Clock::time_point now) {
  auto [socket, last] = accept_connection(listener_.get());
  if (last) listener_ = {};
  if (!socket) {
    // Most likely out of file descriptors; the listener stays readable until some are free.
    if (!last && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      next_accept_ = now + kAcceptAgain;
    return;
  }
  if (num_unauthenticated_ >= options_.max_unauthenticated) {
    // connections_ is in order of age.
    const auto oldest =
        std::ranges::find_if(connections_, [](const auto& c) { return !c->rank && !c->over; });
    if (oldest != connections_.end()) (*oldest)->over = true;
  }
  tune(socket.get());
  add(std::move(socket), now);
}

void Coordinator::add(FileDescriptor socket, Clock::time_point now) {
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  connection->since = now;
  connections_.push_back(std::move(connection));
  ++num_unauthenticated_;
}

void Coordinator::read(Connection& c) {
  if (c.over) return;
  if (c.parting) {
    std::array<std::byte, 4096> ignored;
    const ssize_t n = ::recv(c.socket.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
    c.over = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    return;
  }
  if (!c.reader) return read_hello(c);
  const std::size_t most = c.rank ? kMaxFrameBytes : kMaxJoinBytes;
  const Flow flow =
      c.reader->read(c.socket.get(), most, [&](Frame& frame) { return on_frame(c, frame); });
  if (flow == Flow::ended && !c.parting) lose(c);
}

void Coordinator::read_hello(Connection& c) {
  const auto state = c.hello.read(c.socket.get(), options_.key, options_.instance);
  if (state == HelloReader::State::more) return;
  const Reply& reply = c.hello.reply();
  c.over = state == HelloReader::State::ended;
  c.parting = !c.over && reply.verdict != Verdict::welcome;
  if (c.over || c.parting) return;
  c.reader = std::make_unique<SecureReader>(reply.keys.from_rank);
  c.writer = std::make_unique<SecureWriter>(reply.keys.from_coordinator);
  c.writer->begin_with(c.hello.welcome());
}

bool Coordinator::on_frame(Connection& c, Frame& frame) {
  if (c.rank) {
    if (group_.on_frame(*c.rank, std::move(frame))) return true;
    part(c);
    return false;
  }
  Frame refusal;
  c.rank = group_.seat(frame, refusal);
  if (!c.rank) {
    c.writer->queue(refusal);
    part(c);
    return false;
  }
  --num_unauthenticated_;
  by_rank_[c.rank->index()] = &c;
  group_.start_if_complete();
  return true;
}

void Coordinator::part(Connection& c) {
  c.parting = true;
  c.since = Clock::now();
  if (!c.rank) return;
  by_rank_[c.rank->index()] = nullptr;
  c.rank.reset();
  ++num_unauthenticated_;
}

void Coordinator::lose(Connection& c) {
  c.over = true;
  if (!c.rank) return;
  by_rank_[c.rank->index()] = nullptr;
  group_.on_lost(*c.rank);
}

void Coordinator::flush_and_sweep(Clock::time_point now) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection& c = *connections_[i];
    if (c.writer && !c.over && c.writer->flush(c.socket.get()) == Flow::ended) lose(c);
    if (c.parting && !c.finished && (!c.writer || c.writer->idle())) {
      (void)::shutdown(c.socket.get(), SHUT_WR);
      c.finished = true;
    }
    if (!c.rank && now - c.since >= options_.handshake_timeout) c.over = true;
  }
  std::erase_if(connections_, [&](const auto& c) {
    if (c->over && !c->rank) --num_unauthenticated_;
    return c->over;
  });
}

void Coordinator::send_tallies(Clock::time_point now) {
  if (!group_.tallies_due() || now < next_tallies_) return;
  next_tallies_ = now + kTalliesEvery;
  group_.send_tallies([&](Rank r) {
    const Connection* c = by_rank_[r.index()];
    return c != nullptr && c->writer->idle();
  });
}

}  // namespace reshard::tcp
