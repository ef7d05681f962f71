// SPDX-License-Identifier: Apache-2.0
// Each direction is a ring of packets in bound buffers of the library. The sender chooses where it
// writes, and writes arrive in order. Unlike unbound buffers, bound ones all report a broken
// connection, even a buffer that is being filled. The library ends the process if a buffer is too
// small for the bytes that arrive or is destroyed while it is being filled, so packets agree on
// sizes first, and buffers outlive the transfers into them.
#include "reshard/transport/gloo/link.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "reshard/transport/gloo/device.h"

namespace reshard::gloo {
namespace {

constexpr std::int32_t kRingSlot = 0;

std::size_t ring_offset(std::uint64_t number) {
  return static_cast<std::size_t>((number - 1) % kPackets) * kSlotBytes;
}

/// The message of an error of the library, without its source location.
std::string readable(const std::exception& e) {
  std::string text = e.what();
  const std::size_t end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  if (end != std::string::npos) text.erase(0, end + 2);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

Link::Link(::gloo::transport::Pair& pair, Notifier& notifier)
    : pair_(pair),
      notifier_(notifier),
      in_(kPackets * kSlotBytes),
      out_(kPackets * kSlotBytes),
      receiver_(pair.createRecvBuffer(kRingSlot, in_.data(), in_.size())),
      sender_(pair.createSendBuffer(kRingSlot, out_.data(), out_.size())) {}

void Link::start(std::vector<char> address) {
  const SignalsBlocked blocked(SignalsBlocked::Which::all);
  reader_ = std::thread([this, address = std::move(address)] { read(address); });
}

void Link::read(const std::vector<char>& address) {
  std::string why;
  try {
    pair_.connect(address);
    {
      const std::lock_guard lock(mutex_);
      connected_ = true;
    }
    notifier_.notify();
    while (true) {
      receiver_->waitRecv();
      {
        const std::lock_guard lock(mutex_);
        ++arrived_;
      }
      notifier_.notify();
    }
  } catch (const std::exception& e) {
    why = readable(e);
  }
  {
    const std::lock_guard lock(mutex_);
    ended_ = why;
  }
  notifier_.notify();
}

bool Link::connected() const {
  const std::lock_guard lock(mutex_);
  return connected_;
}

std::optional<std::string> Link::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool Link::room_for(Kind kind) const {
  return sent_ - freed_ < (kind == Kind::credit ? kPackets : kPackets - kForCredit);
}

Result<> Link::send(Header header, std::span<const std::byte> bytes) {
  if (closed_) return fail(Code::aborted, "the connection is closed");
  if (const auto why = ended()) return fail(Code::aborted, *why);
  if (!queued_.empty() || !room_for(header.kind)) {
    queued_.push_back({header, {bytes.begin(), bytes.end()}});
    return {};
  }
  write(header, bytes);
  return {};
}

void Link::write(Header header, std::span<const std::byte> bytes) {
  header.number = ++sent_;
  header.acknowledged = acknowledged_ = consumed_;
  header.bytes = static_cast<std::uint32_t>(bytes.size());
  const std::size_t at = ring_offset(header.number);
  std::byte* to = out_.data() + at;
  std::memcpy(to, &header, sizeof header);
  if (!bytes.empty()) std::memcpy(to + sizeof header, bytes.data(), bytes.size());
  std::memcpy(to + sizeof header + bytes.size(), &header.number, sizeof header.number);
  try {
    const SignalsBlocked blocked(SignalsBlocked::Which::pipe);
    sender_->send(at, sizeof header + bytes.size() + sizeof header.number, at);
  } catch (const std::exception&) {
    // The reading thread gets and reports the error, too.
  }
}

void Link::push(bool acknowledge) {
  if (closed_ || ended()) return;
  while (!queued_.empty() && room_for(queued_.front().header.kind)) {
    write(queued_.front().header, queued_.front().bytes);
    queued_.pop_front();
  }
  acknowledge |= consumed_ - acknowledged_ >= kPackets / 2;
  if (acknowledge && room_for(Kind::credit)) write({.kind = Kind::credit}, {});
}

/// True if the ring has all of this packet. @pre the connection has ended, so nobody writes the
/// ring
bool Link::has_packet(std::uint64_t number) const {
  const std::byte* at = in_.data() + ring_offset(number);
  Header header;
  std::memcpy(&header, at, sizeof header);
  if (header.number != number || header.bytes > kMaxPacket) return false;
  std::uint64_t after = 0;
  std::memcpy(&after, at + sizeof header + header.bytes, sizeof after);
  return after == number;
}

std::optional<Link::Packet> Link::front() {
  if (closed_) return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    // The library does not report packets that arrived just before the connection ended.
    if (consumed_ == arrived_ && !(ended_ && has_packet(consumed_ + 1))) return std::nullopt;
  }
  Packet out;
  const std::byte* at = in_.data() + ring_offset(consumed_ + 1);
  std::memcpy(&out.header, at, sizeof out.header);
  out.header.bytes = std::min<std::uint32_t>(out.header.bytes, kMaxPacket);
  out.bytes = {at + sizeof out.header, out.header.bytes};
  const std::uint64_t freed = std::min(out.header.acknowledged, sent_);
  for (; freed_ < freed; ++freed_) {
    // Decrements a counter of the library; the packet was sent, so this does not block.
    try {
      sender_->waitSend();
    } catch (const std::exception&) {
    }
  }
  return out;
}

void Link::pop() { ++consumed_; }

std::unique_ptr<::gloo::transport::Buffer> Link::bind_receive(std::int32_t slot,
                                                              std::span<std::byte> bytes) {
  return pair_.createRecvBuffer(slot, bytes.data(), bytes.size());
}

Result<std::unique_ptr<::gloo::transport::Buffer>> Link::send_bulk(
    std::int32_t slot, std::span<const std::byte> bytes) {
  try {
    const SignalsBlocked blocked(SignalsBlocked::Which::pipe);
    auto buffer = pair_.createSendBuffer(slot, const_cast<std::byte*>(bytes.data()), bytes.size());
    buffer->send(0, bytes.size(), 0);
    return buffer;
  } catch (const std::exception& e) {
    return fail(Code::aborted, readable(e));
  }
}

void Link::close() {
  if (closed_) return;
  closed_ = true;
  const SignalsBlocked blocked(SignalsBlocked::Which::pipe);
  try {
    pair_.close();
    // close() does not wake a thread that waits for a buffer; a send() on a closed pair does.
    sender_->send(0, 1, 0);
  } catch (const std::exception&) {
  }
  if (reader_.joinable()) reader_.join();
}

}  // namespace reshard::gloo
