// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nvshmem/exchanger.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "reshard/cuda/driver.h"
#include "reshard/transport/checks.h"

namespace reshard::nvshmem {
namespace {

/// Streams for puts, so that one that is slow does not hold up those to all other peers.
constexpr std::size_t kLanes = 4;
/// For the own work to end. It waits for no peer, so only a broken GPU or network takes longer.
constexpr std::chrono::seconds kDrain{5};
constexpr std::chrono::microseconds kDrainNap{20};

std::string describe(const Message& m) {
  return fmt::format("message {} {} rank {}", m.id.value(), m.sending ? "to" : "from",
                     m.peer.value());
}

}  // namespace

Result<std::shared_ptr<Exchanger>> Exchanger::make(ControlPlane& control, Membership member) {
  std::shared_ptr<Exchanger> made(new Exchanger(control, std::move(member)));
  RESHARD_TRY(made->set_up());
  return made;
}

Exchanger::~Exchanger() { close(); }

Result<> Exchanger::set_up() {
  const auto ranks = static_cast<std::size_t>(size());
  for (std::size_t i = 0; i < std::min(kLanes, ranks); ++i)
    puts_.push_back(RESHARD_TRY(Lane::make(member_.device)));
  copies_ = RESHARD_TRY(Lane::make(member_.device));
  looks_ = RESHARD_TRY(Lane::make(member_.device));
  seen_ = RESHARD_TRY(
      cuda::Buffer::pinned(member_.device, static_cast<Index>(ranks * sizeof(PeerWords))));
  peers_ = std::vector<Peer>(ranks);
  for (std::size_t i = 0; i < ranks; ++i) {
    peers_[i].pe = member_.pes[i];
    peers_[i].lane = i % puts_.size();
    RESHARD_TRY(call("nvshmem_ptr", [&](const Library& library) {
      peers_[i].direct = library.nvshmem_ptr(member_.base, peers_[i].pe) != nullptr;
    }));
    // What a network card writes is visible to the GPU after a wait only.
    if (!member_.waits && !peers_[i].direct)
      return fail(Code::unsupported,
                  fmt::format("nvshmem: ranks share a GPU without MPS, and only a network reaches "
                              "rank {}: start MPS, or give each rank a GPU",
                              i));
  }
  return {};
}

template <class F>
Result<> Exchanger::call(std::string_view what, F&& f) const {
  return member_.device->call(what, [&] {
    f(*member_.library);
    return static_cast<int>(cuda::kSuccess);
  });
}

PeerWords* Exchanger::words(Rank rank) const {
  return reinterpret_cast<PeerWords*>(at(member_.staging.words(rank.value())));
}

Result<> Exchanger::signal(const Lane& lane, std::uint64_t* word, std::uint64_t value,
                           int pe) const {
  return call("nvshmemx_signal_op_on_stream", [&](const Library& library) {
    library.nvshmemx_signal_op_on_stream(word, value, kSignalSet, pe, lane.stream().handle());
  });
}

Result<> Exchanger::check_usable() const {
  if (control_ == nullptr)
    return fail(Code::invalid_argument,
                fmt::format("exchange on rank {} after close()", rank().value()));
  RESHARD_TRY(control_->status());
  if (over_) return tl::unexpected(*over_);
  return {};
}

Result<std::unique_ptr<Step>> Exchanger::post(std::span<const Send> sends,
                                              std::span<const Recv> recvs) {
  RESHARD_TRY(check_usable());
  auto step = std::make_unique<Step>();
  step->messages.reserve(sends.size() + recvs.size());
  Result<> added;
  for (const Send& s : sends)
    if (added) added = add(*step, true, s.to, s.id, s.bytes);
  for (const Recv& r : recvs)
    if (added) added = add(*step, false, r.from, r.id, r.bytes);
  step->left = step->messages.size();
  step->done = step->left == 0;
  if (!added) {
    withdraw(*step);
    return tl::unexpected(std::move(added).error());
  }
  // The first messages are the sends.
  std::vector<std::size_t> order(sends.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return sends[i].turn; });
  for (const std::size_t i : order) peer(sends[i].to).queue.push_back(&step->messages[i]);
  if (!step->done) undone_.push_back(step.get());
  return step;
}

Result<> Exchanger::add(Step& step, bool sending, Rank to, MessageId id,
                        std::span<const std::byte> bytes) {
  RESHARD_TRY(check_member(sending ? "send to" : "receive from", to, size()));
  Message m;
  m.step = &step;
  m.sending = sending;
  m.peer = to;
  m.id = id;
  // One type serves both directions; a send only reads.
  m.bytes = const_cast<std::byte*>(bytes.data());
  m.size = bytes.size();
  if (!bytes.empty()) {
    const cuda::MemoryKind kind = RESHARD_TRY(cuda::memory_kind(*member_.device, bytes.data()));
    m.on_device = kind.on_device;
    if (kind.on_device && kind.ordinal != member_.device->ordinal())
      return fail(
          Code::unsupported,
          fmt::format("nvshmem: {} is in the memory of GPU {}, and rank {} uses GPU {}",
                      describe(m), kind.ordinal, rank().value(), member_.device->ordinal()));
  }
  auto& active = sending ? peer(to).sends : peer(to).recvs;
  step.messages.push_back(m);
  if (active.emplace(id.value(), &step.messages.back()).second) return {};
  step.messages.pop_back();
  return fail(
      Code::invalid_argument,
      fmt::format("{} is in use already: two messages of these ranks have its id", describe(m)));
}

bool Exchanger::progress() {
  if (over_) return false;
  const Result<bool> moved = advance();
  if (!moved) fail_all(moved.error());
  return moved.value_or(true);
}

Result<bool> Exchanger::advance() {
  RESHARD_TRY(control_->status());
  for (Lane& lane : puts_) RESHARD_TRY(lane.look());
  RESHARD_TRY(copies_->look());
  RESHARD_TRY(looks_->look());
  bool moved = false;
  if (looking_ && looks_->is_idle()) {
    looking_ = false;
    moved = RESHARD_TRY(read_words());
  }
  // Every rank begins with another peer, so that not all send to the same one.
  for (int i = 0; i < size(); ++i)
    moved |= RESHARD_TRY(put_segments(Rank{(rank().value() + i) % size()}));
  moved |= settle();
  if (!looking_ && !undone_.empty()) RESHARD_TRY(look_at_words());
  return moved;
}

Result<> Exchanger::look_at_words() {
  RESHARD_TRY(looks_->stream().copy(seen_.data(), at(0), seen_.size()));
  looks_->note();
  looking_ = true;
  return looks_->look();
}

Result<bool> Exchanger::read_words() {
  bool moved = false;
  const auto* const all = reinterpret_cast<const PeerWords*>(seen_.data());
  for (int i = 0; i < size(); ++i) {
    const PeerWords& words = all[i];
    if (peer(Rank{i}).is_idle()) continue;
    moved |= RESHARD_TRY(take_answers(Rank{i}, words));
    moved |= RESHARD_TRY(take_segments(Rank{i}, words));
    RESHARD_TRY(check_ending(Rank{i}, words));
  }
  return moved;
}

Result<bool> Exchanger::take_answers(Rank rank, const PeerWords& words) {
  bool moved = false;
  for (int i = 0; i < kSlots; ++i) {
    Sent& sent = peer(rank).slots[i];
    if (sent.message == nullptr) continue;
    const SlotWords& answer = words.slots[i];
    Message& m = *sent.message;
    if (answer.credit == refusal_of(sent.check, answer.wanted))
      return fail(
          Code::invalid_argument,
          fmt::format("message {} from rank {} to rank {} has {} bytes, but the receiver "
                      "expects {}",
                      m.id.value(), this->rank().value(), rank.value(), m.size, answer.wanted));
    if (answer.credit != sent.check) continue;
    sent = {};
    moved = true;
    if (--m.unanswered == 0 && m.given == m.size) finish(m);
  }
  return moved;
}

Result<bool> Exchanger::take_segments(Rank rank, const PeerWords& words) {
  bool moved = false;
  for (int i = 0; i < kSlots; ++i) {
    const auto slot = peer(rank).received % kSlots;
    Message* const m = RESHARD_TRY(arrived(rank, words.slots[slot]));
    if (m == nullptr) break;
    RESHARD_TRY(copy_out(rank, *m));
    moved = true;
  }
  return moved;
}

/// The message whose segment is in the next slot of this peer; null if none has come, or its
/// receive is not posted.
Result<Message*> Exchanger::arrived(Rank rank, const SlotWords& words) {
  Peer& from = peer(rank);
  if (Message* const m = from.arriving; m != nullptr) {
    const bool came = words.check ==
                      segment_check(member_.group, from.received, m->id.value(), m->size, m->given);
    return came ? m : nullptr;
  }
  const std::uint64_t id = words.id ^ draw(Draw::id_key, member_.group, from.received);
  const std::uint64_t bytes = words.bytes ^ draw(Draw::bytes_key, member_.group, from.received);
  if (words.check != segment_check(member_.group, from.received, id, bytes, 0)) return nullptr;
  const auto posted = from.recvs.find(id);
  if (posted == from.recvs.end()) return nullptr;
  Message& m = *posted->second;
  if (m.size != bytes) return tl::unexpected(refuse(rank, m, words.check, bytes));
  return &m;
}

Error Exchanger::refuse(Rank rank, const Message& m, std::uint64_t check, std::uint64_t bytes) {
  const Peer& from = peer(rank);
  SlotWords& answer = words(this->rank())->slots[from.received % kSlots];
  Result<> sent = signal(*copies_, &answer.wanted, m.size, from.pe);
  if (sent) sent = signal(*copies_, &answer.credit, refusal_of(check, m.size), from.pe);
  copies_->note();
  if (!sent) return std::move(sent).error();
  return {Code::invalid_argument,
          fmt::format("message {} from rank {} to rank {} has {} bytes, but the receiver expects "
                      "{}",
                      m.id.value(), rank.value(), this->rank().value(), bytes, m.size)};
}

Result<> Exchanger::copy_out(Rank rank, Message& m) {
  Peer& from = peer(rank);
  const auto slot = static_cast<int>(from.received % kSlots);
  const std::size_t bytes = std::min(member_.staging.slot_bytes(), m.size - m.given);
  const std::uint64_t check =
      segment_check(member_.group, from.received, m.id.value(), m.size, m.given);
  if (member_.waits)
    RESHARD_TRY(call("nvshmemx_signal_wait_until_on_stream", [&](const Library& library) {
      library.nvshmemx_signal_wait_until_on_stream(&words(rank)->slots[slot].check, kCompareEqual,
                                                   check, copies_->stream().handle());
    }));
  m.begun = true;
  const std::uint64_t number = copies_->note();
  RESHARD_TRY(copies_->stream().copy(m.bytes + m.given,
                                     at(member_.staging.incoming(rank.value(), slot)),
                                     static_cast<Index>(bytes)));
  RESHARD_TRY(signal(*copies_, &words(this->rank())->slots[slot].credit, check, from.pe));
  ++from.received;
  m.given += bytes;
  from.arriving = m.given < m.size ? &m : nullptr;
  m.step->copied = number;
  if (from.arriving == nullptr) finish(m);
  return {};
}

Result<> Exchanger::check_ending(Rank rank, const PeerWords& words) {
  Peer& from = peer(rank);
  if (words.ended == kGoesOn) return {};
  // What came before the end is seen at the latest by a look that begins after the end was seen.
  if (!std::exchange(from.has_ended, true) || from.is_idle()) return {};
  const auto& some = from.recvs.empty() ? from.sends : from.recvs;
  std::uint64_t first = some.begin()->first;
  for (const auto& [id, m] : some) first = std::min(first, id);
  return fail(Code::aborted, fmt::format("rank {} {} before this was done: {}", rank.value(),
                                         words.ended == kClosed ? "closed its transport" : "failed",
                                         describe(*some.at(first))));
}

Result<bool> Exchanger::put_segments(Rank rank) {
  Peer& to = peer(rank);
  bool moved = false;
  while (!to.queue.empty() && to.slots[to.sent % kSlots].message == nullptr) {
    RESHARD_TRY(put_segment(rank, *to.queue.front()));
    moved = true;
  }
  return moved;
}

Result<> Exchanger::put_segment(Rank rank, Message& m) {
  Peer& to = peer(rank);
  Lane& lane = puts_[to.lane];
  const auto slot = static_cast<int>(to.sent % kSlots);
  const std::size_t bytes = std::min(member_.staging.slot_bytes(), m.size - m.given);
  const std::uint64_t check = segment_check(member_.group, to.sent, m.id.value(), m.size, m.given);
  const std::byte* from = m.bytes + m.given;
  m.begun = true;
  lane.note();
  if (bytes != 0 && !(m.on_device && to.direct)) {
    std::byte* const outgoing = at(member_.staging.outgoing(rank.value(), slot));
    RESHARD_TRY(lane.stream().copy(outgoing, from, static_cast<Index>(bytes)));
    from = outgoing;
  }
  SlotWords& there = words(this->rank())->slots[slot];
  // Only with the first: the receiver may answer others before these words have arrived, which then
  // could overwrite those of the slot's next segment.
  if (m.given == 0) {
    const std::uint64_t id = m.id.value() ^ draw(Draw::id_key, member_.group, to.sent);
    const std::uint64_t size = m.size ^ draw(Draw::bytes_key, member_.group, to.sent);
    RESHARD_TRY(signal(lane, &there.id, id, to.pe));
    RESHARD_TRY(signal(lane, &there.bytes, size, to.pe));
  }
  if (bytes == 0) {
    RESHARD_TRY(signal(lane, &there.check, check, to.pe));
  } else {
    RESHARD_TRY(call("nvshmemx_putmem_signal_on_stream", [&](const Library& library) {
      library.nvshmemx_putmem_signal_on_stream(
          at(member_.staging.incoming(this->rank().value(), slot)), from, bytes, &there.check,
          check, kSignalSet, to.pe, lane.stream().handle());
    }));
  }
  to.slots[slot] = {&m, check};
  ++to.sent;
  ++m.unanswered;
  m.given += bytes;
  if (m.given == m.size) to.queue.pop_front();
  return {};
}

void Exchanger::finish(Message& m) {
  m.done = true;
  --m.step->left;
  (m.sending ? peer(m.peer).sends : peer(m.peer).recvs).erase(m.id.value());
}

/// Completes the steps whose messages are done and copied.
bool Exchanger::settle() {
  return std::erase_if(undone_, [&](Step* step) {
           step->done = step->left == 0 && copies_->is_done(step->copied);
           return step->done;
         }) != 0;
}

void Exchanger::withdraw(Step& step) {
  if (step.done) return;
  const bool begun = std::ranges::any_of(step.messages, &Message::begun);
  if (begun && !over_)
    return fail_all({Code::aborted, "nvshmem: an event was destroyed before it was done"});
  for (const Message& m : step.messages) {
    Peer& with = peer(m.peer);
    (m.sending ? with.sends : with.recvs).erase(m.id.value());
    with.queue.erase_if([&](const Message* queued) { return queued == &m; });
  }
  std::erase(undone_, &step);
  step.done = true;
}

void Exchanger::expire(const Step& step) {
  std::size_t left = 0;
  const Message* first = nullptr;
  for (const Message& m : step.messages) {
    if (m.done) continue;
    ++left;
    if (first == nullptr) first = &m;
  }
  if (first == nullptr)
    return fail_all({Code::deadline, "deadline passed while the GPU copied what had arrived"});
  fail_all(
      {Code::deadline,
       fmt::format("deadline passed: {} of {} messages are not complete; {} has {} of {} bytes",
                   left, step.messages.size(), describe(*first), first->given, first->size)});
}

void Exchanger::fail_all(Error why) {
  if (over_) return;
  over_ = why;
  tell(kFailed);
  drain();
  if (!drained_)
    why.message += "; work of this group may still run on the GPU: do not free its memory";
  over_ = why;
  for (Step* const step : undone_) {
    step->error = why;
    step->done = true;
  }
  undone_.clear();
  for (Peer& with : peers_) {
    with.queue.clear();
    with.sends.clear();
    with.recvs.clear();
    with.arriving = nullptr;
    for (Sent& sent : with.slots) sent = {};
  }
}

/// Tells all peers that nothing else comes, after all that was given to streams has arrived there.
/// If the group was aborted, the control plane tells them.
void Exchanger::tell(std::uint64_t how) {
  if (!control_->status()) return;
  const auto quiet = [&](const Lane& lane) {
    return call("nvshmemx_quiet_on_stream", [&](const Library& library) {
      library.nvshmemx_quiet_on_stream(lane.stream().handle());
    });
  };
  // A driver that fails here has failed for good: then the control plane tells the peers.
  bool works = quiet(*copies_) && copies_->mark().record(copies_->stream());
  for (Lane& lane : puts_) {
    works = works && copies_->mark().hold(lane.stream()) && quiet(lane);
    lane.note();
  }
  copies_->note();
  for (const Peer& to : peers_)
    works = works && signal(puts_[to.lane], &words(rank())->ended, how, to.pe);
  for (Lane& lane : puts_) works = works && quiet(lane);
}

void Exchanger::drain() {
  const Deadline end = Deadline::after(kDrain);
  const auto is_idle = [](Lane& lane) {
    // After an error of the driver nothing runs any more.
    return !lane.look() || lane.is_idle();
  };
  const auto all_idle = [&] {
    bool idle = is_idle(*copies_) && is_idle(*looks_);
    for (Lane& lane : puts_) idle = is_idle(lane) && idle;
    return idle;
  };
  while (!all_idle()) {
    if (end.expired()) {
      drained_ = false;
      return;
    }
    std::this_thread::sleep_for(kDrainNap);
  }
}

void Exchanger::close() {
  if (control_ == nullptr) return;
  if (!undone_.empty())
    fail_all({Code::aborted,
              fmt::format("rank {} closed its transport before this was done", rank().value())});
  if (!over_ && copies_ && looks_) {
    tell(kClosed);
    drain();
  }
  over_ = Error{Code::invalid_argument, "nvshmem: used after close()"};
  control_ = nullptr;
}

}  // namespace reshard::nvshmem
