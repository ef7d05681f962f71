// SPDX-License-Identifier: Apache-2.0
// Early ends of messages: withdrawn by their rank, abandoned by a peer, ended by an abort or by the
// wire. No event is done before its memory is free. If the wire does not release memory in time,
// the wire is closed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "reshard/transport/messages/matcher.h"

namespace reshard::messages {
namespace {

/// How long a withdrawn bulk may take to end by itself. The alternative, closing the wire, ends the
/// group.
constexpr std::chrono::milliseconds kGrace{100};
/// How long to wait for the control plane to say why a peer is gone.
constexpr std::chrono::milliseconds kCauseTimeout{500};
/// Least time between two such waits: many messages may end for one reason.
constexpr std::chrono::seconds kCauseInterval{1};
/// How long a complete step waits for its last frames to leave. Bounded, because the peer that must
/// make room may itself be waiting for this rank in the control plane.
constexpr std::chrono::seconds kDrain{1};
/// Longest sleep: an abort wakes no wire.
constexpr std::chrono::milliseconds kNap{1};
/// Empty polls in a row before a rank yields, and before it sleeps.
constexpr int kSpins = 64, kYields = 128;
/// A yield that takes longer gave the processor to other threads. Sleeping is faster then, because
/// the system prefers threads that were woken to threads that yielded.
constexpr std::chrono::microseconds kYieldsFor{20};

}  // namespace

Result<> Matcher::usable(std::string_view what) const {
  if (closed_) {
    return fail(Code::invalid_argument,
                fmt::format("{} on rank {} after close()", what, rank_.value()));
  }
  RESHARD_TRY(control_->status());
  if (ended_) return tl::unexpected(*ended_);
  return {};
}

void Matcher::pause(int times, Deadline deadline) {
  if (times == 0) crowded_ = false;
  if (times < kSpins || wire_closed_) return;
  if (times < kYields && !crowded_) {
    const Deadline soon = Deadline::after(kYieldsFor);
    std::this_thread::yield();
    crowded_ = soon.expired();
    return;
  }
  wire_->idle(std::min(deadline, Deadline::after(kNap)));
  polls_ = 0;
}

bool Matcher::drained(Step& step) {
  if (wire_closed_ || wire_->drained()) return true;
  if (!step.drain_until) step.drain_until = Deadline::after(kDrain);
  return step.drain_until->expired();
}

bool Matcher::check_status() {
  if (aborted_ || control_ == nullptr) return false;
  const Result<> status = control_->status();
  if (status) return false;
  aborted_ = status.error();
  for (Step* step : steps_) step->fail(*aborted_);
  return true;
}

/// The reason for a wire error, if the control plane knows it or learns it soon; else the error.
Error Matcher::cause_of(Error error) {
  const auto again = cause_until_ ? cause_until_->time() + kCauseInterval : Deadline::Clock::now();
  if (Deadline(again).expired()) cause_until_ = Deadline::after(kCauseTimeout);
  while (true) {
    (void)check_status();
    if (aborted_) return *aborted_;
    if (control_ == nullptr || cause_until_->expired()) return error;
    std::this_thread::sleep_for(kNap);
  }
}

/// Gives back what an eager message took of kEagerWindow.
void Matcher::return_window(const Message& m) {
  if (m.side == Side::send && m.state == State::eager && m.bytes > kTinyBytes)
    links_[m.peer.index()].eager_sent -= m.bytes;
}

/// Ends the peer's part in a message. @pre !m.lent
void Matcher::detach(Message& m) {
  return_window(m);
  if (m.side == Side::recv && m.state == State::cleared && m.method == Method::framed) --framed_;
  m.state = State::over;
}

void Matcher::fail_peer(Rank peer, const Error& error) {
  Link& link = links_[peer.index()];
  if (link.gone) return;
  link.gone = error;
  if (!first_loss_) first_loss_ = error;
  link.frame.clear();
  messages_.for_each([&](std::uint32_t, Message& m) {
    if (m.peer == peer && !m.step->error)
      m.step->fail(aborted_ ? error : Error(error).in(describe(m)));
  });
  unexpected_.for_each([&](std::uint32_t index, UnexpectedMessage& rts) {
    if (rts.from != peer) return;
    const MessageTable::Entry* entry = table_.find(peer, rts.id);
    const bool waits = entry != nullptr && entry->kind == MessageTable::Kind::unexpected;
    if (waits && entry->index == index) drop_unexpected(index);
  });
}

void Matcher::on_gone(Rank peer, Error why) {
  if (peer.value() < 0 || peer.value() >= size_ || links_[peer.index()].gone) return;
  fail_peer(peer, cause_of(std::move(why)));
}

/// Ends everything after an error of the wire.
void Matcher::fail_all(const Error& error) {
  for (Link& link : links_)
    if (!link.gone) link.gone = error;
  shut_down(error);
}

void Matcher::shut_down(const Error& why) {
  if (wire_closed_) return;
  const bool silent = closed_ && !aborted_;
  const std::string text = silent ? "" : why.message.substr(0, kMaxText);
  for (int r = 0; r < size_; ++r)
    if (Rank{r} != rank_) answer(Rank{r}, {Kind::bye, 0, {}, std::as_bytes(std::span(text))});
  flush();
  wire_closed_ = true;
  wire_->close();
  messages_.for_each([&](std::uint32_t, Message& m) {
    unlend(m);
    m.state = State::over;
  });
  bulks_ = framed_ = 0;
  if (!ended_) ended_ = why;
  for (Step* step : steps_) step->fail(why);
}

/// The reason that the peer gets. An abort is passed on unchanged, so that every rank names the
/// first cause. A step that was destroyed without an error most likely was because another step
/// failed.
std::string Matcher::give_up_reason(const Message& m) const {
  const std::optional<Error>& error = m.step->error ? m.step->error : first_loss_;
  if (error && error->code == Code::aborted) return error->message;
  return fmt::format("rank {} gave up {} before it was complete{}{}", rank_.value(), describe(m),
                     error ? ": " : "", error ? error->message : "");
}

void Matcher::withdraw_send(std::uint32_t index, Message& send, bool& revoke) {
  if (send.lent) return;
  const std::string why = give_up_reason(send);
  const bool out = send.state == State::cleared && send.method == Method::tagged;
  if (send.state != State::over && !out)
    answer(send.peer, {Kind::cancel, 0, {messages_.token(index), send.id.value()}, tail_of(why)});
  revoke |= send.described;
  release(index);
}

void Matcher::withdraw_recv(std::uint32_t index, Message& recv) {
  if (recv.lent) return;
  if (recv.state != State::over && recv.state != State::posted) {
    refuse(recv.peer, recv.remote, {Code::aborted, give_up_reason(recv)});
  }
  release(index);
}

void Matcher::withdraw(Step& step) {
  if (step.left != 0) {
    // Whoever gave the step up may have learnt of an abort before this transport did.
    (void)check_status();
    bool revoke = false;
    for (const bool settled : {false, true}) {
      for (const std::uint64_t token : step.tokens) {
        Message* m = messages_.find(token);
        if (m == nullptr) continue;
        const std::uint32_t index = Slab<Message>::index(token);
        if (m->side == Side::send) {
          withdraw_send(index, *m, revoke);
        } else {
          withdraw_recv(index, *m);
        }
      }
      if (revoke && !wire_closed_) wire_->revoke();
      flush();
      if (!settled) reclaim(step);
    }
    step.left = 0;
  }
  std::erase(steps_, &step);
}

/// Returns when the wire holds no memory of the step.
void Matcher::reclaim(Step& step) {
  const Deadline grace = Deadline::after(kGrace);
  for (int idle = 0; step.lent > 0;) {
    if (aborted_ || ended_ || grace.expired()) {
      const Error why = step.error.value_or(
          Error{Code::aborted, fmt::format("rank {} gave up messages in flight", rank_.value())});
      shut_down(aborted_ ? *aborted_ : Error{Code::aborted, why.message});
      return;
    }
    if (progress()) {
      idle = 0;
    } else {
      pause(idle++, grace);
    }
  }
}

Error Matcher::deadline_error(const Step& step) {
  const Message* first = nullptr;
  for (const std::uint64_t token : step.tokens) {
    first = messages_.find(token);
    if (first != nullptr) break;
  }
  std::string what = "all of them were being copied";
  if (first != nullptr) {
    const bool met = first->state != State::posted && first->side == Side::recv;
    what = fmt::format("{} ({} bytes) was not {} there", describe(*first), first->bytes,
                       first->side == Side::send ? "received" : "sent");
    if (met || first->state == State::cleared)
      what = fmt::format("{} ({} bytes) was in flight", describe(*first), first->bytes);
  }
  return {Code::deadline,
          fmt::format("deadline passed on rank {} with {} of {} messages missing: {}",
                      rank_.value(), step.left, step.tokens.size(), what)};
}

void Matcher::close() {
  if (closed_) return;
  (void)check_status();
  closed_ = true;
  shut_down(aborted_ ? *aborted_
                     : Error{Code::aborted,
                             fmt::format("rank {} closed its transport before this was done",
                                         rank_.value())});
  control_ = nullptr;
}

}  // namespace reshard::messages
