// SPDX-License-Identifier: Apache-2.0
// A sender announces each message to its receiver. The receiver finds the matching receive (or
// stores the announcement until one is posted), compares the sizes, and chooses the best method to
// move the bytes. The receiver ends every message, so a send completes only after its bytes have
// arrived. All lookups take constant time; records to one peer share frames.
//
// Bytes on a GPU are never touched here: their message is a bulk whatever its size, even to this
// rank itself. A sender that has them says so in its RTS. A sender that has not may have sent the
// bytes already; the receiver then asks for an RTS in place of these.
#include "reshard/transport/messages/matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "reshard/base/log/log.h"

namespace reshard::messages {

Matcher::Matcher(std::unique_ptr<Wire> wire, ControlPlane& control)
    : wire_(std::move(wire)),
      control_(&control),
      rank_(wire_->rank()),
      size_(wire_->size()),
      gpu_messages_(wire_->capabilities().gpu_messages),
      links_(static_cast<std::size_t>(size_)) {
  to_flush_.reserve(links_.size());
  flushing_.reserve(links_.size());
}

std::string Matcher::describe(Rank from, MessageId id, Rank to) const {
  return fmt::format("message {} from rank {} to rank {}", id.value(), from.value(), to.value());
}

std::string Matcher::describe(const Message& m) const {
  return m.side == Side::send ? describe(rank_, m.id, m.peer) : describe(m.peer, m.id, rank_);
}

/// The largest payload that fits into one frame with its record. Bytes.
std::size_t Matcher::eager_limit() const { return std::min(kEagerBytes, wire_->max_frame() - 32); }

/// True if the bytes travel in a frame after the CTS.
bool Matcher::framed(const Message& m) const { return !m.bulk && m.bytes <= eager_limit(); }

bool Matcher::on_gpu(std::span<const std::byte> bytes) const {
  return gpu_messages_ && !bytes.empty() && wire_->on_gpu(bytes);
}

void Matcher::answer(Rank to, const Record& record) {
  Link& link = links_[to.index()];
  if (to == rank_) {
    (void)handle(rank_, record);
    return;
  }
  if (link.gone || wire_closed_) return;
  const std::size_t bytes = encoded_bytes(record);
  if (link.frame.size() + bytes > wire_->max_frame()) {
    const Result<> sent = wire_->send_frame(to, link.frame);
    link.frame.clear();
    if (!sent) {
      fail_peer(to, cause_of(sent.error()));
      return;
    }
  }
  append(link.frame, record);
  if (!std::exchange(link.to_flush, true)) to_flush_.push_back(to);
}

void Matcher::flush() {
  // fail_peer() below may queue more records; the next flush sends them.
  flushing_.clear();
  std::swap(flushing_, to_flush_);
  for (const Rank to : flushing_) {
    Link& link = links_[to.index()];
    link.to_flush = false;
    if (link.frame.empty() || link.gone || wire_closed_) continue;
    const Result<> sent = wire_->send_frame(to, link.frame);
    link.frame.clear();
    if (!sent) fail_peer(to, cause_of(sent.error()));
  }
}

std::unique_ptr<Step> Matcher::new_step() {
  if (spare_steps_.empty()) return std::make_unique<Step>();
  std::unique_ptr<Step> step = std::move(spare_steps_.back());
  spare_steps_.pop_back();
  return step;
}

void Matcher::give_back(std::unique_ptr<Step> step) {
  step->clear();
  if (spare_steps_.size() < kSpareSteps) spare_steps_.push_back(std::move(step));
}

void Matcher::post(Step& step, std::span<const Send> sends, std::span<const Recv> recvs) {
  steps_.push_back(&step);
  step.tokens.reserve(std::max(kInitialCapacity, sends.size() + recvs.size()));
  step.left = sends.size() + recvs.size();
  // Receives first, so that messages to this rank itself match at once.
  for (const Recv& recv : recvs) post_recv(step, recv);
  for (const Send& send : sends) post_send(step, send);
  flush();
}

void Matcher::post_send(Step& step, const Send& send) {
  Link& link = links_[send.to.index()];
  if (link.gone) {
    step.fail(Error(*link.gone).in(describe(rank_, send.id, send.to)));
    return;
  }
  Message m{.data = const_cast<std::byte*>(send.bytes.data()),
            .bytes = send.bytes.size(),
            .step = &step,
            .id = send.id,
            .peer = send.to,
            .side = Side::send,
            .state = State::rts_sent,
            .bulk = on_gpu(send.bytes)};
  const bool tiny = m.bytes <= kTinyBytes;
  const bool by_host = send.to != rank_ && !m.bulk;
  const bool eager =
      by_host && (tiny || (m.bytes <= eager_limit() && m.bytes <= kEagerWindow - link.eager_sent));
  WireAddress address;
  if (eager) {
    m.state = State::eager;
    if (!tiny) link.eager_sent += m.bytes;
  } else if (by_host) {
    address = wire_->describe_source(send.to, send.bytes);
    m.described = !address.empty();
  }
  const std::uint64_t token = messages_.add(m);
  step.tokens.push_back(token);
  if (eager) {
    answer(send.to, {Kind::payload, 0, {token, send.id.value()}, send.bytes});
  } else {
    answer(send.to, {Kind::rts, m.bulk, {token, send.id.value(), m.bytes}, address.bytes()});
  }
}

void Matcher::post_recv(Step& step, const Recv& recv) {
  Link& link = links_[recv.from.index()];
  if (link.gone) {
    step.fail(Error(*link.gone).in(describe(recv.from, recv.id, rank_)));
    return;
  }
  MessageTable::Entry* entry = table_.find(recv.from, recv.id);
  if (entry != nullptr && entry->kind == MessageTable::Kind::recv) {
    step.fail({Code::invalid_argument,
               describe(recv.from, recv.id, rank_) +
                   " is received twice; an id may be used again once its event is done"});
    return;
  }
  const std::uint64_t token = messages_.add({.data = recv.bytes.data(),
                                             .bytes = recv.bytes.size(),
                                             .step = &step,
                                             .id = recv.id,
                                             .peer = recv.from,
                                             .side = Side::recv,
                                             .bulk = on_gpu(recv.bytes)});
  const std::uint32_t index = Slab<Message>::index(token);
  step.tokens.push_back(token);
  if (entry == nullptr) {
    table_.insert({recv.id, recv.from, index, MessageTable::Kind::recv});
    return;
  }
  const std::uint32_t at = entry->index;
  *entry = {recv.id, recv.from, index, MessageTable::Kind::recv};
  UnexpectedMessage rts = std::move(unexpected_[at]);
  if (rts.eager && rts.bytes > kTinyBytes) link.eager_held -= rts.bytes;
  --link.num_unexpected;
  unexpected_.remove(at);
  const std::byte* kept = rts.payload ? rts.payload.get() : rts.inlined.data();
  match(index, rts, {kept, rts.eager ? rts.bytes : 0});
  if (rts.payload) spare_payloads_.push_back(std::move(rts.payload));
}

/// Stores a message that no receive waits for.
void Matcher::store_unexpected(Rank from, UnexpectedMessage rts, std::span<const std::byte> bytes,
                               Link& link) {
  if (bytes.size() > kTinyBytes) {
    link.eager_held += bytes.size();
    if (spare_payloads_.empty())
      spare_payloads_.push_back(std::make_unique_for_overwrite<std::byte[]>(kEagerBytes));
    rts.payload = std::move(spare_payloads_.back());
    spare_payloads_.pop_back();
    std::memcpy(rts.payload.get(), bytes.data(), bytes.size());
  } else if (!bytes.empty()) {
    std::memcpy(rts.inlined.data(), bytes.data(), bytes.size());
  }
  ++link.num_unexpected;
  const MessageId id = rts.id;
  const auto at = Slab<UnexpectedMessage>::index(unexpected_.add(std::move(rts)));
  table_.insert({id, from, at, MessageTable::Kind::unexpected});
}

void Matcher::drop_unexpected(std::uint32_t index) {
  UnexpectedMessage& rts = unexpected_[index];
  Link& link = links_[rts.from.index()];
  if (rts.eager && rts.bytes > kTinyBytes) link.eager_held -= rts.bytes;
  --link.num_unexpected;
  if (rts.payload) spare_payloads_.push_back(std::move(rts.payload));
  table_.erase(rts.from, rts.id);
  unexpected_.remove(index);
}

/// Matches a receive with an announced message. `bytes` are those that came with it, if any.
void Matcher::match(std::uint32_t index, UnexpectedMessage& rts, std::span<const std::byte> bytes) {
  Message& recv = messages_[index];
  recv.remote = rts.token;
  if (rts.bytes != recv.bytes) {
    const Error error{Code::invalid_argument,
                      fmt::format("{}: the sender has {} bytes, the receiver expects {}; both must "
                                  "give the same size",
                                  describe(recv), rts.bytes, recv.bytes)};
    recv.state = State::over;
    recv.step->fail(error);
    refuse(recv.peer, rts.token, error);
    return;
  }
  if (rts.eager && recv.bulk) {
    ask_again(recv);
    return;
  }
  if (rts.eager) {
    if (!bytes.empty()) std::memcpy(recv.data, bytes.data(), bytes.size());
    finish_recv(index);
    return;
  }
  recv.state = State::rts_sent;
  recv.bulk |= rts.bulk;
  if (rts.inline_bytes != 0 && !recv.bulk) {
    recv.described = true;
    recv.source = Slab<UnexpectedMessage>::index(unexpected_.add(std::move(rts)));
  }
  const bool pulled = recv.described || (recv.peer == rank_ && !recv.bulk);
  auto& queue = pulled ? pulls_ : for_cts_;
  queue.push_back(messages_.token(index));
}

bool Matcher::progress() {
  if (wire_closed_) return false;
  if (polls_++ % 64 == 0 && check_status()) return true;
  const Result<bool> polled = wire_->poll(*this);
  if (!polled) {
    fail_all(cause_of(polled.error()));
    return true;
  }
  bool moved = *polled;
  moved |= move_pulls();
  moved |= clear_some();
  flush();
  return moved;
}

bool Matcher::move_pulls() {
  bool moved = false;
  for (std::size_t budget = kPiece; budget > 0 && !pulls_.empty();) {
    Message* recv = messages_.find(pulls_.front());
    const std::uint32_t index = Slab<Message>::index(pulls_.front());
    if (recv == nullptr || recv->state != State::rts_sent || recv->step->error) {
      pulls_.pop_front();
      continue;
    }
    moved = true;
    if (!pull_piece(index, *recv, budget)) pulls_.pop_front();
  }
  return moved;
}

/// True if the message has more bytes to pull.
bool Matcher::pull_piece(std::uint32_t index, Message& recv, std::size_t& budget) {
  const std::size_t bytes = std::min(budget, recv.bytes - recv.moved);
  const std::span<std::byte> into(recv.data + recv.moved, bytes);
  if (recv.peer == rank_) {
    if (bytes != 0) std::memcpy(into.data(), messages_.find(recv.remote)->data + recv.moved, bytes);
  } else {
    const UnexpectedMessage& from = unexpected_[recv.source];
    const Result<> pulled =
        wire_->pull(recv.peer, std::span(from.inlined).first(from.inline_bytes), recv.moved, into);
    if (!pulled && pulled.error().code == Code::unsupported) {
      recv.moved = 0;
      ask_again(recv);
      return false;
    }
    if (!pulled) {
      fail_peer(recv.peer, cause_of(pulled.error()));
      return false;
    }
  }
  // Small messages cost time, too.
  budget -= std::min(budget, std::max<std::size_t>(bytes, 256));
  recv.moved += bytes;
  if (recv.moved < recv.bytes) return true;
  finish_recv(index);
  return false;
}

/// Asks the sender for another RTS, without an address or bytes.
void Matcher::ask_again(Message& recv) {
  log_event(LogLevel::debug, "transport", rank_.value(), [&] {
    return fmt::format("a message from rank {} cannot be pulled: asked for another RTS",
                       recv.peer.value());
  });
  recv.state = State::retry;
  answer(recv.peer, {Kind::retry, 0, {recv.remote}});
}

bool Matcher::clear_some() {
  bool moved = false;
  while (!for_cts_.empty()) {
    Message* recv = messages_.find(for_cts_.front());
    const std::uint32_t index = Slab<Message>::index(for_cts_.front());
    if (recv != nullptr && recv->state == State::rts_sent && !recv->step->error) {
      if (framed(*recv) ? framed_ >= kMaxFramed : bulks_ >= kMaxBulks) return moved;
      send_cts(index, *recv);
      moved = true;
    }
    for_cts_.pop_front();
  }
  return moved;
}

void Matcher::send_cts(std::uint32_t index, Message& recv) {
  const std::uint64_t recv_token = messages_.token(index);
  const std::span<std::byte> bytes(recv.data, recv.bytes);
  recv.state = State::cleared;
  if (framed(recv)) {
    recv.method = Method::framed;
    ++framed_;
    answer(recv.peer,
           {Kind::cts, static_cast<std::uint8_t>(Method::framed), {recv.remote, recv_token, 0}});
    return;
  }
  const WireAddress address =
      recv.peer == rank_ ? WireAddress() : wire_->describe_target(recv.peer, bytes);
  const bool placed = !address.empty();
  recv.method = placed ? Method::put : Method::tagged;
  lend(recv);
  ++bulks_;
  const std::uint64_t tag = next_tag_++;
  if (!placed) {
    const Result<> started = wire_->recv_bulk(recv.peer, tag, bytes, BulkId{recv_token});
    if (!started) {
      unlend(recv);
      --bulks_;
      recv.state = State::over;
      fail_peer(recv.peer, cause_of(started.error()));
      return;
    }
  }
  answer(recv.peer, {Kind::cts,
                     static_cast<std::uint8_t>(recv.method),
                     {recv.remote, recv_token, tag},
                     address.bytes()});
}

void Matcher::lend(Message& m) {
  m.lent = true;
  ++m.step->lent;
}

void Matcher::unlend(Message& m) {
  if (!std::exchange(m.lent, false)) return;
  --m.step->lent;
}

void Matcher::finish_recv(std::uint32_t index) {
  const Message& recv = messages_[index];
  answer(recv.peer, {Kind::done, 0, {recv.remote}});
  finish(index);
}

void Matcher::finish(std::uint32_t index) {
  --messages_[index].step->left;
  release(index);
}

void Matcher::release(std::uint32_t index) {
  Message& m = messages_[index];
  detach(m);
  if (m.side == Side::recv) {
    table_.erase(m.peer, m.id);
    if (m.described) unexpected_.remove(m.source);
  }
  messages_.remove(index);
}

void Matcher::on_bulk(BulkId id, Result<> outcome) {
  Message* m = messages_.find(id.value());
  if (m == nullptr || !m->lent) return;
  const std::uint32_t index = Slab<Message>::index(id.value());
  unlend(*m);
  if (m->side == Side::recv) --bulks_;
  if (!outcome) {
    m->state = State::over;
    fail_peer(m->peer, cause_of(outcome.error()));
  } else if (m->side == Side::recv) {
    finish_recv(index);
  } else if (m->method == Method::put) {
    answer(m->peer, {Kind::put_done, 0, {m->remote}});
    finish(index);
  } else if (m->answered) {
    finish(index);
  }
}

}  // namespace reshard::messages
