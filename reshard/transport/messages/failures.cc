// SPDX-License-Identifier: Apache-2.0
// How messages end early: withdrawn by their rank, left by a peer, ended by an abort or by the
// wire. No event is done before its memory is nobody else's; where the wire holds it and does not
// let go in time, the wire is closed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "reshard/transport/messages/core.h"

namespace reshard::engine {
namespace {

/// How long a withdrawn bulk may still take to end by itself. Closing the wire in its place ends
/// the group, so it is not the first choice.
constexpr std::chrono::milliseconds kGrace{100};
/// How long the control plane has to tell why a peer went, once the wire has noticed that it did.
constexpr std::chrono::milliseconds kExplain{500};
/// Not asked again so soon: many messages may end for one reason.
constexpr std::chrono::seconds kExplainAgain{1};
/// How long a whole step waits for its last words to get out. Not for ever: the peer that would
/// have to make room may itself wait for this rank, in the control plane.
constexpr std::chrono::seconds kTell{1};
/// A rank that sleeps looks up this often: an abort wakes no wire.
constexpr std::chrono::milliseconds kNap{1};
/// Polls in a row that find nothing before a rank yields, and before it sleeps.
constexpr int kSpins = 64, kYields = 128;
/// A yield that takes longer gave the core to others: sleeping is then the shorter way back, as the
/// system runs who is woken before who yielded.
constexpr std::chrono::microseconds kYieldsFor{20};

}  // namespace

Result<> Core::usable(std::string_view what) const {
  if (closed_) {
    return fail(Code::invalid_argument,
                fmt::format("{} on rank {} after close()", what, rank_.value()));
  }
  RESHARD_TRY(control_->status());
  if (over_) return tl::unexpected(*over_);
  return {};
}

void Core::pause(int times, Deadline deadline) {
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

bool Core::told(Step& step) {
  if (wire_closed_ || wire_->drained()) return true;
  if (!step.told) step.told = Deadline::after(kTell);
  return step.told->expired();
}

bool Core::check_status() {
  if (aborted_ || control_ == nullptr) return false;
  const Result<> status = control_->status();
  if (status) return false;
  aborted_ = status.error();
  for (Step* step : steps_) step->fail(*aborted_);
  return true;
}

/// The wire sees that a peer went; why it did, the control plane knows or is about
/// to hear.
Error Core::explained(Error error) {
  const auto again =
      explain_until_ ? explain_until_->time() + kExplainAgain : Deadline::Clock::now();
  if (Deadline(again).expired()) explain_until_ = Deadline::after(kExplain);
  while (true) {
    (void)check_status();
    if (aborted_) return *aborted_;
    if (control_ == nullptr || explain_until_->expired()) return error;
    std::this_thread::sleep_for(kNap);
  }
}

/// The peer has no more to do with this message. @pre !m.lent
void Core::close_off(Message& m) {
  if (m.side == Side::send && m.state == State::eager && m.bytes > kTinyBytes)
    links_[m.peer.index()].eager_out -= m.bytes;
  if (m.side == Side::recv && m.state == State::granted && m.way == Way::framed) --framed_;
  m.state = State::over;
}

void Core::fail_peer(Rank peer, const Error& error) {
  Link& link = links_[peer.index()];
  if (link.gone) return;
  link.gone = error;
  if (!first_loss_) first_loss_ = error;
  link.frame.clear();
  messages_.for_each([&](std::uint32_t, Message& m) {
    if (m.peer == peer && !m.step->error)
      m.step->fail(aborted_ ? error : Error(error).in(describe(m)));
  });
  arrivals_.for_each([&](std::uint32_t index, UnexpectedMessage& arrival) {
    if (arrival.from != peer) return;
    const MessageTable::Entry* entry = table_.find(peer, arrival.id);
    const bool waits = entry != nullptr && entry->kind == MessageTable::Kind::arrival;
    if (waits && entry->index == index) drop_arrival(index);
  });
}

void Core::on_gone(Rank peer, Error why) {
  if (peer.value() < 0 || peer.value() >= size_ || links_[peer.index()].gone) return;
  fail_peer(peer, explained(std::move(why)));
}

/// The wire has ended.
void Core::fail_all(const Error& error) {
  for (Link& link : links_)
    if (!link.gone) link.gone = error;
  shut(error);
}

void Core::shut(const Error& why) {
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
  if (!over_) over_ = why;
  for (Step* step : steps_) step->fail(why);
}

/// What the peer is told. An abort is told as it is: every rank names the first cause. A step that
/// was dropped without an error was dropped, most likely, because another one had one.
std::string Core::gave_up(const Message& m) const {
  const std::optional<Error>& error = m.step->error ? m.step->error : first_loss_;
  if (error && error->code == Code::aborted) return error->message;
  return fmt::format("rank {} gave up {} before it was whole{}{}", rank_.value(), describe(m),
                     error ? ": " : "", error ? error->message : "");
}

void Core::withdraw_send(std::uint32_t index, Message& send, bool& revoke) {
  if (send.lent) return;
  const std::string why = gave_up(send);
  const bool out = send.state == State::granted && send.way == Way::tagged;
  if (send.state != State::over && !out)
    answer(send.peer, {Kind::cancel, 0, {messages_.token(index), send.id.value()}, tail_of(why)});
  revoke |= send.described;
  release(index);
}

void Core::withdraw_recv(std::uint32_t index, Message& recv) {
  if (recv.lent) return;
  if (recv.state != State::over && recv.state != State::posted) {
    refuse(recv.peer, recv.remote, {Code::aborted, gave_up(recv)});
  }
  release(index);
}

void Core::withdraw(Step& step) {
  if (step.left != 0) {
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
      if (!settled) settle(step);
    }
    step.left = 0;
  }
  std::erase(steps_, &step);
}

/// Returns when the wire has none of the step's memory.
void Core::settle(Step& step) {
  const Deadline grace = Deadline::after(kGrace);
  for (int idle = 0; step.lent > 0;) {
    if (aborted_ || over_ || grace.expired()) {
      const Error why = step.error.value_or(Error{
          Code::aborted, fmt::format("rank {} gave up messages on their way", rank_.value())});
      shut(aborted_ ? *aborted_ : Error{Code::aborted, why.message});
      return;
    }
    if (progress()) {
      idle = 0;
    } else {
      pause(idle++, grace);
    }
  }
}

Error Core::late(const Step& step) {
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
    if (met || first->state == State::granted)
      what = fmt::format("{} ({} bytes) was on its way", describe(*first), first->bytes);
  }
  return {Code::deadline,
          fmt::format("deadline passed on rank {} with {} of {} messages missing: {}",
                      rank_.value(), step.left, step.tokens.size(), what)};
}

void Core::close() {
  if (closed_) return;
  (void)check_status();
  closed_ = true;
  shut(aborted_
           ? *aborted_
           : Error{Code::aborted, fmt::format("rank {} closed its transport before this was done",
                                              rank_.value())});
  control_ = nullptr;
}

}  // namespace reshard::engine
