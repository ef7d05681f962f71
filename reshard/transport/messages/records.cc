// SPDX-License-Identifier: Apache-2.0
// What peers say. A rank may be late (its word is of a message that was withdrawn here) but not
// wrong: what no correct peer can say ends the link with it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "reshard/transport/messages/core.h"

namespace reshard::engine {
namespace {

/// A peer's text on one line.
std::string one_line(std::span<const std::byte> tail) {
  std::string text(reinterpret_cast<const char*>(tail.data()), tail.size());
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

}  // namespace

void Core::on_frame(Rank from, std::span<const std::byte> frame) {
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

std::string Core::handle(Rank from, const Record& record) {
  switch (record.kind) {
    case Kind::payload:
    case Kind::rts: return on_rts(from, record);
    case Kind::done:
    case Kind::refuse:
    case Kind::cts:
    case Kind::again: return on_sender_record(from, record);
    case Kind::data:
    case Kind::placed: return on_receiver_record(from, record);
    case Kind::cancel: return on_cancel(from, record);
    case Kind::bye: on_bye(from, record); return "";
  }
  return "an unknown kind";
}

void Core::on_bye(Rank from, const Record& record) {
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

std::string Core::on_rts(Rank from, const Record& record) {
  const bool eager = record.kind == Kind::payload;
  Link& link = links_[from.index()];
  const std::size_t bytes = eager ? record.tail.size() : record.numbers[2];
  UnexpectedMessage arrival{.from = from,
                            .id = MessageId{record.numbers[1]},
                            .token = record.numbers[0],
                            .bytes = bytes,
                            .eager = eager};
  if (eager && bytes > kEagerBytes) return fmt::format("a payload of {} bytes", bytes);
  if (!eager && !record.tail.empty()) {
    arrival.inline_bytes = static_cast<std::uint8_t>(record.tail.size());
    std::memcpy(arrival.inlined.data(), record.tail.data(), record.tail.size());
  }
  MessageTable::Entry* entry = table_.find(from, arrival.id);
  if (entry == nullptr) {
    if (link.arrivals >= kMaxArrivals)
      return fmt::format("more than {} messages that nobody expects", kMaxArrivals);
    if (eager && bytes > kTinyBytes && bytes > kEagerWindow - link.eager_in)
      return fmt::format("payloads of more than {} bytes that nobody expects", kEagerWindow);
    arrive(from, std::move(arrival), eager ? record.tail : std::span<const std::byte>(), link);
    return "";
  }
  if (entry->kind == MessageTable::Kind::recv) {
    const std::uint32_t index = entry->index;
    Message& recv = messages_[index];
    if (recv.state == State::posted) {
      match(index, arrival, eager ? record.tail : std::span<const std::byte>());
      return "";
    }
    if (recv.state == State::again && recv.remote == arrival.token && !eager &&
        arrival.inline_bytes == 0 && bytes == recv.bytes) {
      arrivals_.remove(recv.arrival);
      recv.described = false;
      recv.state = State::rts_sent;
      for_cts_.push_back(messages_.token(index));
      return "";
    }
  }
  refuse(
      from, arrival.token,
      {Code::invalid_argument, describe(from, arrival.id, rank_) +
                                   " is sent twice; an id is free again when its event is done"});
  return "";
}

void Core::refuse(Rank to, std::uint64_t token, const Error& error) {
  answer(to,
         {Kind::refuse, static_cast<std::uint8_t>(error.code), {token}, tail_of(error.message)});
}

/// What the receiver of a send of this rank says of it.
std::string Core::on_sender_record(Rank from, const Record& record) {
  const std::uint64_t token = record.numbers[0];
  Message* send = messages_.find(token);
  if (send == nullptr)
    return messages_.issued(token) ? "" : fmt::format("it names message {:#x} of nobody", token);
  if (send->side != Side::send || send->peer != from)
    return fmt::format("it names message {:#x}, which is another rank's", token);
  if (send->state == State::over) return "";
  const std::uint32_t index = Slab<Message>::index(token);
  if (record.kind == Kind::cts) return on_cts(index, *send, record);
  if (record.kind == Kind::again) return on_again(index, *send);
  if (record.kind == Kind::refuse) {
    const auto code = static_cast<Code>(record.detail);
    if (code != Code::invalid_argument && code != Code::aborted)
      return fmt::format("a refusal with code {}", record.detail);
    on_refuse(*send, record);
    return "";
  }
  if (send->state == State::granted && send->way == Way::placed)
    return "an answer to a message that is being placed";
  send->answered = true;
  if (!send->lent) finish(index);
  return "";
}

void Core::on_refuse(Message& send, const Record& record) {
  send.step->fail({static_cast<Code>(record.detail), one_line(record.tail)});
  if (!send.lent) close_off(send);
}

std::string Core::on_again(std::uint32_t index, Message& send) {
  if (send.state != State::rts_sent || !send.described) return "it asks again for what it has";
  send.described = false;
  answer(send.peer, {Kind::rts, 0, {messages_.token(index), send.id.value(), send.bytes}});
  return "";
}

std::string Core::on_cts(std::uint32_t index, Message& send, const Record& record) {
  if (send.state != State::rts_sent || send.bytes == 0) return "a CTS that was not asked for";
  const auto way = static_cast<Way>(record.detail);
  const std::span<const std::byte> bytes(send.data, send.bytes);
  const BulkId id{messages_.token(index)};
  send.remote = record.numbers[1];
  send.state = State::granted;
  send.way = way;
  if (way == Way::framed) {
    if (send.bytes > eager_limit()) return "a CTS of a frame for too many bytes";
    answer(send.peer, {Kind::data, 0, {send.remote}, bytes});
    return "";
  }
  if (way != Way::placed && way != Way::tagged) return "a CTS without a way";
  lend(send);
  const Result<> started = way == Way::placed
                               ? wire_->put(send.peer, record.tail, bytes, id)
                               : wire_->send_bulk(send.peer, record.numbers[2], bytes, id);
  if (!started) {
    unlend(send);
    close_off(send);
    fail_peer(send.peer, explained(started.error()));
  }
  return "";
}

/// What the sender of a receive of this rank says of it.
std::string Core::on_receiver_record(Rank from, const Record& record) {
  const std::uint64_t room = record.numbers[0];
  Message* recv = messages_.find(room);
  if (recv == nullptr)
    return messages_.issued(room) ? "" : fmt::format("it names room {:#x} of nobody", room);
  if (recv->side != Side::recv || recv->peer != from)
    return fmt::format("it names room {:#x}, which is another rank's", room);
  if (recv->state == State::over) return "";
  const std::uint32_t index = Slab<Message>::index(room);
  const Way way = record.kind == Kind::data ? Way::framed : Way::placed;
  if (recv->state != State::granted || recv->way != way) return "bytes that were not granted";
  if (way == Way::placed) {
    if (!recv->lent) return "bytes that were placed twice";
    unlend(*recv);
    --bulks_;
    finish(index);
    return "";
  }
  if (record.tail.size() != recv->bytes)
    return fmt::format("{} bytes where {} were granted", record.tail.size(), recv->bytes);
  std::memcpy(recv->data, record.tail.data(), recv->bytes);
  finish_recv(index);
  return "";
}

std::string Core::on_cancel(Rank from, const Record& record) {
  const std::uint64_t token = record.numbers[0];
  const MessageId id{record.numbers[1]};
  const MessageTable::Entry* entry = table_.find(from, id);
  if (entry == nullptr) return "";
  if (entry->kind == MessageTable::Kind::arrival) {
    if (arrivals_[entry->index].token == token) drop_arrival(entry->index);
    return "";
  }
  Message& recv = messages_[entry->index];
  if (recv.state == State::posted || recv.state == State::over || recv.remote != token) return "";
  recv.step->fail({Code::aborted,
                   record.tail.empty() ? describe(recv) + " was given up" : one_line(record.tail)});
  // A receive that the wire has begun ends with the wire; a peer that gave up places nothing.
  if (recv.lent && recv.way == Way::tagged) return "";
  if (recv.lent) {
    unlend(recv);
    --bulks_;
  }
  close_off(recv);
  return "";
}

}  // namespace reshard::engine
