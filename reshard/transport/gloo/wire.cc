// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/gloo/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>

#include "reshard/transport/gloo/device.h"
#include "reshard/transport/host_identity.h"

namespace reshard::gloo {
namespace {

/// How long close() waits for peers to consume what was sent to them.
constexpr std::chrono::milliseconds kCloseTimeout{200};
/// How long connecting may continue after an abort.
constexpr std::chrono::seconds kAfterAbort{1};
/// Longest sleep, because not every change notifies.
constexpr std::chrono::milliseconds kNap{5};
/// Slots of bulks are at least 2 and less than twice this plus 2.
constexpr std::int32_t kMaxSlot = std::numeric_limits<std::int32_t>::max() / 4;
/// Size of an encoded address, padded. Bytes.
constexpr std::size_t kAddressBytes = 256;

Result<> within(const Result<>& result, Rank peer) {
  if (result) return result;
  return tl::unexpected(Error(result.error()).in(fmt::format("rank {}", peer.value())));
}

/// Gathers the bytes of every rank, or the error of this rank or of the first rank that has one.
Result<std::vector<std::vector<std::byte>>> gather_all(ControlPlane& control,
                                                       const Result<std::vector<std::byte>>& mine,
                                                       Deadline deadline) {
  std::vector<std::byte> bytes{std::byte{mine.has_value()}};
  const std::string text = mine ? "" : mine.error().message;
  const auto rest = mine ? std::span<const std::byte>(*mine) : std::as_bytes(std::span(text));
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  auto all = RESHARD_TRY(control.all_gather(bytes, deadline));
  if (!mine) return tl::unexpected(mine.error());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty() || all[r][0] != std::byte{1}) {
      const std::string why(reinterpret_cast<const char*>(all[r].data()), all[r].size());
      return fail(Code::aborted, fmt::format("rank {}: {}", r, why.empty() ? why : why.substr(1)));
    }
    all[r].erase(all[r].begin());
  }
  return all;
}

}  // namespace

Result<std::vector<std::byte>> GlooWire::listen() {
  std::vector<std::byte> out(peers_.size() * kAddressBytes);
  try {
    const SignalsBlocked blocked(SignalsBlocked::Which::all);
    context_ = device_->createContext(rank_.value(), size());
    // No timeout (0 means none): all waits here are bounded otherwise.
    context_->setTimeout(std::chrono::milliseconds::zero());
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      if (r == rank_.index()) continue;
      auto& pair = context_->createPair(static_cast<int>(r));
      const std::vector<char> address = pair->address().bytes();
      if (address.size() > kAddressBytes - 1)
        return fail(Code::io, "gloo: an address of more than 255 bytes");
      out[r * kAddressBytes] = static_cast<std::byte>(address.size());
      std::transform(address.begin(), address.end(),
                     out.begin() + static_cast<std::ptrdiff_t>(r * kAddressBytes + 1),
                     [](char c) { return static_cast<std::byte>(c); });
      peers_[r].link = std::make_unique<Link>(*pair, notifier_);
    }
  } catch (const std::exception& e) {
    return fail(Code::io, fmt::format("gloo: listening: {}", e.what()));
  }
  return out;
}

Result<> GlooWire::connect(std::span<const std::vector<std::byte>> addresses,
                           const ControlPlane& control, Deadline deadline) {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (r == rank_.index()) continue;
    const std::vector<std::byte>& all = addresses[r];
    if (all.size() != peers_.size() * kAddressBytes)
      return fail(Code::corrupt, fmt::format("gloo: rank {} sent no addresses", r));
    const std::byte* mine = all.data() + rank_.index() * kAddressBytes;
    std::vector<char> address(static_cast<std::size_t>(mine[0]));
    for (std::size_t i = 0; i < address.size(); ++i) address[i] = static_cast<char>(mine[1 + i]);
    peers_[r].link->start(std::move(address));
  }
  return await_all(control, deadline);
}

Result<> GlooWire::await_all(const ControlPlane& control, Deadline deadline) {
  std::optional<Deadline> aborted;
  while (true) {
    std::string missing;
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      const auto& link = peers_[r].link;
      if (!link || link->connected()) continue;
      if (const auto why = link->ended())
        return fail(Code::aborted, fmt::format("gloo: rank {}: {}", r, *why));
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
    }
    if (missing.empty()) return {};
    // A connected rank may abort at once; then the group, which is complete, reports the abort.
    const Result<> status = control.status();
    if (!status && !aborted) aborted = Deadline::after(kAfterAbort);
    if (aborted && aborted->expired()) return status;
    if (deadline.expired()) {
      return fail(Code::deadline, fmt::format("gloo: rank {} could not connect to ranks {} in time",
                                              rank_.value(), missing));
    }
    idle(deadline);
  }
}

Result<> GlooWire::send_frame(Rank to, std::span<const std::byte> frame) {
  if (closed_) return fail(Code::aborted, "the wire is closed");
  return within(peers_[to.index()].link->send({.kind = Kind::frame}, frame), to);
}

bool GlooWire::drained() const {
  return std::ranges::all_of(
      peers_, [](const Peer& p) { return !p.link || p.link->all_sent() || p.link->ended(); });
}

Result<> GlooWire::send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                             messages::BulkId id) {
  if (closed_) return fail(Code::aborted, "the wire is closed");
  Peer& peer = peers_[to.index()];
  if (const auto why = peer.link->ended()) return within(fail(Code::aborted, *why), to);
  Bulk& bulk = peer.out[tag] = {.bytes = bytes, .id = id, .buffer = nullptr};
  const auto slot = peer.recv_slots.find(tag);
  if (slot == peer.recv_slots.end()) return {};
  const Result<> started = start_send(to, tag, bulk, slot->second);
  peer.recv_slots.erase(slot);
  if (!started) peer.out.erase(tag);
  return started;
}

Result<> GlooWire::start_send(Rank to, std::uint64_t tag, Bulk& bulk, RecvSlot slot) {
  Link& link = *peers_[to.index()].link;
  if (slot.size != bulk.bytes.size()) {
    return fail(Code::corrupt, fmt::format("gloo: rank {} is ready for {} of {} bytes", to.value(),
                                           slot.size, bulk.bytes.size()));
  }
  auto buffer = link.send_bulk(slot.slot, bulk.bytes);
  if (!buffer) return within(tl::unexpected(buffer.error()), to);
  bulk.buffer = std::move(*buffer);
  return within(link.send({.kind = Kind::sent, .tag = tag}, {}), to);
}

Result<> GlooWire::recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes,
                             messages::BulkId id) {
  if (closed_) return fail(Code::aborted, "the wire is closed");
  Peer& peer = peers_[from.index()];
  if (const auto why = peer.link->ended()) return within(fail(Code::aborted, *why), from);
  // One side uses even slots, the other odd ones: destroying a buffer that sends to a slot makes
  // the library forget the buffer that receives in this slot.
  const std::int32_t slot = 2 * next_slot_ + (rank_ < from ? 1 : 0);
  next_slot_ = next_slot_ == kMaxSlot ? 1 : next_slot_ + 1;
  Bulk& bulk = peer.in[tag] = {.bytes = bytes, .id = id, .buffer = nullptr};
  bulk.buffer = peer.link->bind_receive(slot, bytes);
  return within(
      peer.link->send({.kind = Kind::cts, .tag = tag, .size = bytes.size(), .slot = slot}, {}),
      from);
}

Result<> GlooWire::take_one(Rank from, Peer& peer, const Link::Packet& packet,
                            messages::WireSink* sink) {
  const Header& head = packet.header;
  switch (head.kind) {
    case Kind::credit: return {};
    case Kind::bye: peer.bye = true; return {};
    case Kind::frame:
      if (sink != nullptr) sink->on_frame(from, packet.bytes);
      return {};
    case Kind::cts: {
      const auto bulk = peer.out.find(head.tag);
      if (bulk != peer.out.end())
        return start_send(from, head.tag, bulk->second, {head.slot, head.size});
      peer.recv_slots[head.tag] = {head.slot, head.size};
      return {};
    }
    case Kind::sent:
    case Kind::received: {
      auto& bulks = head.kind == Kind::sent ? peer.in : peer.out;
      const auto bulk = bulks.find(head.tag);
      if (bulk == bulks.end() || !bulk->second.buffer)
        return fail(Code::corrupt,
                    fmt::format("gloo: rank {} names an unknown bulk", from.value()));
      const messages::BulkId id = bulk->second.id;
      bulks.erase(bulk);
      if (head.kind == Kind::sent)
        (void)peer.link->send({.kind = Kind::received, .tag = head.tag}, {});
      if (sink != nullptr) sink->on_bulk(id, {});
      return {};
    }
  }
  return fail(Code::corrupt, fmt::format("gloo: rank {} sent an unknown packet", from.value()));
}

bool GlooWire::take(Rank from, Peer& peer, messages::WireSink* sink) {
  bool moved = false;
  const bool had_bye = peer.bye;
  // Bounded, so that all peers get their turn.
  for (std::uint64_t i = 0; i < kPackets && !closed_ && !broken_; ++i) {
    const auto packet = peer.link->front();
    if (!packet) break;
    moved = true;
    if (const Result<> taken = take_one(from, peer, *packet, sink); !taken && !peer.link->ended())
      broken_ = taken.error();
    peer.link->pop();
  }
  // A rank that leaves waits for this acknowledgement.
  peer.link->push(peer.bye && !had_bye);
  return moved;
}

/// Fails the bulks of a connection that has ended, once all its packets are consumed.
void GlooWire::retire(Rank rank, Peer& peer, messages::WireSink& sink) {
  peer.retired = true;
  peer.link->close();
  const Error error{Code::aborted, fmt::format("rank {}: {}", rank.value(),
                                               peer.link->ended().value_or("it has closed"))};
  std::vector<messages::BulkId> lost;
  for (auto* bulks : {&peer.out, &peer.in}) {
    for (const auto& [tag, bulk] : *bulks) lost.push_back(bulk.id);
    bulks->clear();
  }
  for (const messages::BulkId id : lost) sink.on_bulk(id, tl::unexpected(error));
  if (!peer.bye && !broken_) broken_ = error;
}

Result<bool> GlooWire::poll(messages::WireSink& sink) {
  if (closed_) return fail(Code::aborted, "the wire is closed");
  bool moved = false;
  for (int r = 0; r < size() && !closed_; ++r) {
    Peer& peer = peers_[Rank{r}.index()];
    if (!peer.link || peer.retired) continue;
    const bool over = peer.link->ended().has_value();
    const bool took = take(Rank{r}, peer, &sink);
    if (over && !took && !closed_) retire(Rank{r}, peer, sink);
    moved |= took;
  }
  if (broken_) return tl::unexpected(*broken_);
  return moved;
}

void GlooWire::idle(Deadline until) {
  const Deadline end = std::min(until, Deadline::after(kNap));
  std::unique_lock lock(notifier_.mutex);
  notifier_.changed.wait_until(lock, end.time(), [&] { return notifier_.count != seen_; });
  seen_ = notifier_.count;
}

void GlooWire::close() {
  if (closed_) return;
  const auto live = [](const Peer& p) { return p.link && !p.retired && !p.link->ended(); };
  for (Peer& peer : peers_)
    if (live(peer) && peer.link->connected()) (void)peer.link->send({.kind = Kind::bye}, {});
  const auto waited_for = [&](const Peer& p) {
    return live(p) && p.link->connected() && !p.bye && !p.link->all_consumed();
  };
  const Deadline parting = Deadline::after(kCloseTimeout);
  while (std::ranges::any_of(peers_, waited_for) && !parting.expired()) {
    for (int r = 0; r < size(); ++r)
      if (Peer& peer = peers_[Rank{r}.index()]; live(peer)) (void)take(Rank{r}, peer, nullptr);
    idle(parting);
  }
  closed_ = true;
  for (Peer& peer : peers_)
    if (peer.link) peer.link->close();
  // In order: buffers, those of the links, the pairs, the thread that serves them.
  for (Peer& peer : peers_) peer = Peer{};
  context_.reset();
  device_.reset();
}

Result<std::unique_ptr<messages::Wire>> GlooWire::make(ControlPlane& control,
                                                       const TransportOptions& options) {
  const std::string host = host_identity();
  const auto host_bytes = std::as_bytes(std::span(host));
  const auto hosts = RESHARD_TRY(control.all_gather(host_bytes, options.deadline));
  const bool one_host = std::ranges::all_of(hosts, [&](const auto& h) { return h == hosts[0]; });
  std::unique_ptr<GlooWire> wire(new GlooWire(control.rank(), control.size()));
  auto device = make_device(options.interface, one_host);
  Result<std::vector<std::byte>> addresses;
  if (device) {
    wire->device_ = std::move(*device);
    addresses = wire->listen();
  } else {
    addresses = tl::unexpected(device.error());
  }
  const auto all = RESHARD_TRY(gather_all(control, addresses, options.deadline));
  RESHARD_TRY(wire->connect(all, control, options.deadline));
  return wire;
}

}  // namespace reshard::gloo
