// SPDX-License-Identifier: Apache-2.0
// Records from peers. A record may be late (its message was withdrawn here meanwhile), but one that
// no correct peer can send ends the connection with its peer.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "reshard/transport/messages/matcher.h"

namespace reshard::messages {
namespace {

/// Text from a peer as one line.
std::string one_line(std::span<const std::byte> tail) {
  std::string text(reinterpret_cast<const char*>(tail.data()), tail.size());
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

}  // namespace

void Matcher::on_frame(Rank from, std::span<const std::byte> frame) {
  if (from.value() < 0 || from.value() >= size_ || from == rank_) return;
  Link& link = links_[from.index()];
  FrameReader reader(frame);
  while (!link.gone && !reader.at_end()) {
    const Result<Record> record = reader.next();
    const std::string wrong = record ? handle(from, *record) : record.error().message;
    if (wrong.empty()) continue;
    const Error error{Code::corrupt, fmt::format("rank {} cannot read a frame of rank {}: {}",
                                                 rank_.value(), from.value(), wrong)};
    answer(from, {Kind::bye, 0, {}, tail_of(error.message)});
    flush();
    fail_peer(from, error);
  }
}

std::string Matcher::handle(Rank from, const Record& record) {
  switch (record.kind) {
    case Kind::payload:
    case Kind::rts: return on_rts(from, record);
    case Kind::done:
    case Kind::refuse:
    case Kind::cts:
    case Kind::retry: return on_sender_record(from, record);
    case Kind::data:
    case Kind::put_done: return on_receiver_record(from, record);
    case Kind::cancel: return on_cancel(from, record);
    case Kind::bye: on_bye(from, record); return "";
  }
  return "an unknown kind";
}

void Matcher::on_bye(Rank from, const Record& record) {
  if (!record.tail.empty()) {
    fail_peer(from, {Code::aborted, one_line(record.tail)});
    return;
  }
  (void)check_status();
  fail_peer(from, aborted_.value_or(Error{
                      Code::aborted, fmt::format("rank {} closed its transport while messages with "
                                                 "it were outstanding",
                                                 from.value())}));
}

std::string Matcher::on_rts(Rank from, const Record& record) {
  const bool eager = record.kind == Kind::payload;
  Link& link = links_[from.index()];
  const std::size_t bytes = eager ? record.tail.size() : record.numbers[2];
  UnexpectedMessage rts{.from = from,
                        .id = MessageId{record.numbers[1]},
                        .token = record.numbers[0],
                        .bytes = bytes,
                        .eager = eager,
                        .bulk = record.detail != 0};
  if (rts.bulk && bytes == 0) return "no bytes on a GPU";
  if (eager && bytes > kEagerBytes) return fmt::format("a payload of {} bytes", bytes);
  if (!eager && !record.tail.empty()) {
    rts.inline_bytes = static_cast<std::uint8_t>(record.tail.size());
    std::memcpy(rts.inlined.data(), record.tail.data(), record.tail.size());
  }
  MessageTable::Entry* entry = table_.find(from, rts.id);
  if (entry == nullptr) {
    if (link.num_unexpected >= kMaxUnexpected)
      return fmt::format("more than {} unexpected messages", kMaxUnexpected);
    if (eager && bytes > kTinyBytes && bytes > kEagerWindow - link.eager_held)
      return fmt::format("more than {} bytes of unexpected messages", kEagerWindow);
    store_unexpected(from, std::move(rts), eager ? record.tail : std::span<const std::byte>(),
                     link);
    return "";
  }
  if (entry->kind == MessageTable::Kind::recv) {
    const std::uint32_t index = entry->index;
    Message& recv = messages_[index];
    if (recv.state == State::posted) {
      match(index, rts, eager ? record.tail : std::span<const std::byte>());
      return "";
    }
    if (recv.state == State::retry && recv.remote == rts.token && !eager && rts.inline_bytes == 0 &&
        bytes == recv.bytes) {
      if (std::exchange(recv.described, false)) unexpected_.remove(recv.source);
      recv.state = State::rts_sent;
      for_cts_.push_back(messages_.token(index));
      return "";
    }
  }
  refuse(from, rts.token,
         {Code::invalid_argument,
          describe(from, rts.id, rank_) +
              " is sent twice; an id may be used again once its event is done"});
  return "";
}

void Matcher::refuse(Rank to, std::uint64_t token, const Error& error) {
  answer(to,
         {Kind::refuse, static_cast<std::uint8_t>(error.code), {token}, tail_of(error.message)});
}

/// Handles a record from the receiver of a message that this rank sends.
std::string Matcher::on_sender_record(Rank from, const Record& record) {
  const std::uint64_t token = record.numbers[0];
  Message* send = messages_.find(token);
  if (send == nullptr)
    return messages_.issued(token) ? "" : fmt::format("token {:#x} was never issued", token);
  if (send->side != Side::send || send->peer != from)
    return fmt::format("token {:#x} is not of a message to that rank", token);
  if (send->state == State::over) return "";
  const std::uint32_t index = Slab<Message>::index(token);
  if (record.kind == Kind::cts) return on_cts(index, *send, record);
  if (record.kind == Kind::retry) return on_retry(index, *send);
  if (record.kind == Kind::refuse) {
    const auto code = static_cast<Code>(record.detail);
    if (code != Code::invalid_argument && code != Code::aborted)
      return fmt::format("a refusal with error code {}", record.detail);
    on_refuse(*send, record);
    return "";
  }
  if (send->state == State::cleared && send->method == Method::put)
    return "an answer to a put in flight";
  send->answered = true;
  if (!send->lent) finish(index);
  return "";
}

void Matcher::on_refuse(Message& send, const Record& record) {
  send.step->fail({static_cast<Code>(record.detail), one_line(record.tail)});
  if (!send.lent) detach(send);
}

std::string Matcher::on_retry(std::uint32_t index, Message& send) {
  const bool eager = send.state == State::eager && send.bytes != 0;
  if (!eager && (send.state != State::rts_sent || !send.described))
    return "a retry of a message that was neither to be pulled nor eager";
  return_window(send);
  send.state = State::rts_sent;
  send.described = false;
  answer(send.peer, {Kind::rts, 0, {messages_.token(index), send.id.value(), send.bytes}});
  return "";
}

std::string Matcher::on_cts(std::uint32_t index, Message& send, const Record& record) {
  if (send.state != State::rts_sent || send.bytes == 0) return "a CTS without an RTS";
  const auto method = static_cast<Method>(record.detail);
  const std::span<const std::byte> bytes(send.data, send.bytes);
  const BulkId id{messages_.token(index)};
  send.remote = record.numbers[1];
  send.state = State::cleared;
  send.method = method;
  if (method == Method::framed) {
    if (!framed(send)) return "a CTS for a frame of bytes that do not fit or are on a GPU";
    answer(send.peer, {Kind::data, 0, {send.remote}, bytes});
    return "";
  }
  if (method != Method::put && method != Method::tagged) return "a CTS with an unknown method";
  lend(send);
  const Result<> started = method == Method::put
                               ? wire_->put(send.peer, record.tail, bytes, id)
                               : wire_->send_bulk(send.peer, record.numbers[2], bytes, id);
  if (!started) {
    unlend(send);
    detach(send);
    fail_peer(send.peer, cause_of(started.error()));
  }
  return "";
}

/// Handles a record from the sender of a message that this rank receives.
std::string Matcher::on_receiver_record(Rank from, const Record& record) {
  const std::uint64_t recv_token = record.numbers[0];
  Message* recv = messages_.find(recv_token);
  if (recv == nullptr)
    return messages_.issued(recv_token)
               ? ""
               : fmt::format("receive token {:#x} was never issued", recv_token);
  if (recv->side != Side::recv || recv->peer != from)
    return fmt::format("receive token {:#x} is not of a message from that rank", recv_token);
  if (recv->state == State::over) return "";
  const std::uint32_t index = Slab<Message>::index(recv_token);
  const Method method = record.kind == Kind::data ? Method::framed : Method::put;
  if (recv->state != State::cleared || recv->method != method) return "bytes without a CTS";
  if (method == Method::put) {
    if (!recv->lent) return "a put that ended twice";
    unlend(*recv);
    --bulks_;
    finish(index);
    return "";
  }
  if (record.tail.size() != recv->bytes)
    return fmt::format("{} bytes where {} were expected", record.tail.size(), recv->bytes);
  std::memcpy(recv->data, record.tail.data(), recv->bytes);
  finish_recv(index);
  return "";
}

std::string Matcher::on_cancel(Rank from, const Record& record) {
  const std::uint64_t token = record.numbers[0];
  const MessageId id{record.numbers[1]};
  const MessageTable::Entry* entry = table_.find(from, id);
  if (entry == nullptr) return "";
  if (entry->kind == MessageTable::Kind::unexpected) {
    if (unexpected_[entry->index].token == token) drop_unexpected(entry->index);
    return "";
  }
  Message& recv = messages_[entry->index];
  if (recv.state == State::posted || recv.state == State::over || recv.remote != token) return "";
  recv.step->fail({Code::aborted, record.tail.empty() ? describe(recv) + " was withdrawn"
                                                      : one_line(record.tail)});
  // A receive that the wire has started ends with the wire; a peer that cancelled puts nothing.
  if (recv.lent && recv.method == Method::tagged) return "";
  if (recv.lent) {
    unlend(recv);
    --bulks_;
  }
  detach(recv);
  return "";
}

}  // namespace reshard::messages
