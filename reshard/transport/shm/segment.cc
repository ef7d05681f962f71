// SPDX-License-Identifier: Apache-2.0
// Layout: header, dirty words, the counters and bytes of the ring for each rank, slots. A ring is a
// sequence of records: length, kind (4 bytes each), bytes, zeros up to a multiple of 8. The
// counters only grow; each side keeps its own and validates the other's. A writer that finds its
// ring empty returns to the start of the ring, so that only as many pages are touched as records
// were waiting. It publishes the count at the start of the ring in `base`, which the reader reads
// only if there are records.
#include "reshard/transport/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

namespace reshard::shm {
namespace {

constexpr std::uint64_t kSegmentMagic = 0x31304d4853445352ULL;
constexpr std::size_t kSegmentAlignment = 4096;
constexpr std::size_t kRecord = 8;
/// A writer of an empty ring returns to its start from this offset on. Bytes.
constexpr std::uint64_t kRewind = std::uint64_t{64} << 10;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

tl::unexpected<Error> refused(std::string_view what) {
  return fail(Code::io, fmt::format("shared mailbox: {}: {}", what, std::strerror(errno)));
}

long futex(std::atomic<std::uint32_t>& word, int op, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), op, value, timeout, nullptr,
                 0);
}

/// Calls copy(ring offset, buffer offset, bytes) for the parts before and after the end of the
/// ring.
template <class Copy>
void around(std::size_t capacity, std::uint64_t at, std::size_t bytes, Copy copy) {
  const std::size_t begin = at % capacity;
  const std::size_t first = std::min(bytes, capacity - begin);
  copy(begin, std::size_t{0}, first);
  copy(std::size_t{0}, first, bytes - first);
}

}  // namespace

struct Segment::Header {
  std::uint64_t magic;
  std::uint64_t nonce;
  std::uint32_t world;
  std::uint32_t owner;
  alignas(64) std::atomic<std::uint32_t> wake_count;
  std::atomic<std::uint32_t> sleeping;
  alignas(64) std::atomic<std::uint32_t> closed;
  std::atomic<std::uint64_t> revoked;
};

struct Segment::Ring {
  alignas(64) std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> base;
  std::atomic<std::uint32_t> wants_room;
  alignas(64) std::atomic<std::uint64_t> read;
  std::byte* bytes() { return reinterpret_cast<std::byte*>(this + 1); }
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

std::size_t Segment::ring_bytes(int world) {
  constexpr std::size_t kAll = std::size_t{1} << 30, kLeast = std::size_t{1} << 20;
  const auto ranks = static_cast<std::size_t>(world);
  return std::clamp(kAll / std::bit_ceil(ranks), kLeast, kAll / 16);
}

std::size_t Segment::bytes_for(int world) {
  const auto ranks = static_cast<std::size_t>(world);
  const std::size_t fixed = sizeof(Header) + round_up((ranks + 63) / 64 * 8, 64);
  return round_up(fixed + ranks * (sizeof(Ring) + ring_bytes(world)), kSegmentAlignment) +
         kSlots * kSlotBytes;
}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(world_, other.world_);
  std::swap(sides_, other.sides_);
  return *this;
}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

Result<Segment> Segment::create(int world, Rank owner, std::uint64_t nonce) {
  FileDescriptor file(memfd_create("reshard-mailbox", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return refused("memfd_create");
  if (ftruncate(file.get(), static_cast<off_t>(bytes_for(world))) != 0) return refused("ftruncate");
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return refused("sealing");
  Header header{};
  header.magic = kSegmentMagic;
  header.nonce = nonce;
  header.world = static_cast<std::uint32_t>(world);
  header.owner = static_cast<std::uint32_t>(owner.value());
  const auto plain = offsetof(Header, wake_count);
  if (pwrite(file.get(), &header, plain, 0) != static_cast<ssize_t>(plain))
    return refused("writing");
  return map(std::move(file), world, owner, nonce);
}

Result<Segment> Segment::map(FileDescriptor file, int world, Rank owner, std::uint64_t nonce) {
  struct stat status{};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  Segment s;
  s.bytes_ = bytes_for(world);
  // Without the seal its owner could truncate the file, and a read here would fault.
  if (fstat(file.get(), &status) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      status.st_size != static_cast<off_t>(s.bytes_)) {
    return fail(Code::corrupt,
                fmt::format("rank {} gave a file that is not a mailbox of a group of {}",
                            owner.value(), world));
  }
  void* p = mmap(nullptr, s.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (p == MAP_FAILED) return refused("mapping");
  s.base_ = static_cast<std::byte*>(p);
  s.file_ = std::move(file);
  s.world_ = world;
  s.sides_.resize(static_cast<std::size_t>(world));
  const Header& header = s.header();
  if (header.magic != kSegmentMagic || header.nonce != nonce ||
      header.world != static_cast<std::uint32_t>(world) ||
      header.owner != static_cast<std::uint32_t>(owner.value())) {
    return fail(Code::corrupt,
                fmt::format("rank {} gave a mailbox of another group", owner.value()));
  }
  return s;
}

Segment::Header& Segment::header() const { return *reinterpret_cast<Header*>(base_); }

std::atomic<std::uint64_t>* Segment::dirty() const {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + sizeof(Header));
}

Segment::Ring& Segment::ring(Rank from) const {
  const std::size_t begin = sizeof(Header) + round_up(num_words() * 8, 64);
  return *reinterpret_cast<Ring*>(base_ + begin +
                                  from.index() * (sizeof(Ring) + ring_bytes(world_)));
}

std::byte* Segment::slot(std::uint32_t number) {
  return base_ + bytes_ - (kSlots - number) * kSlotBytes;
}

std::atomic<std::uint32_t>& Segment::closed() { return header().closed; }
std::atomic<std::uint64_t>& Segment::revoked() { return header().revoked; }

Result<bool> Segment::push(Rank from, Kind kind, std::span<const std::byte> bytes) {
  Ring& r = ring(from);
  const std::size_t capacity = ring_bytes(world_);
  auto& [written, base] = sides_[from.index()];
  const std::uint64_t used = written - r.read.load(std::memory_order_acquire);
  if (used > capacity || used % 8 != 0)
    return fail(Code::corrupt, "its mailbox has a read count beyond the write count");
  const std::size_t needed = kRecord + round_up(bytes.size(), 8);
  if (needed > capacity - used) return false;
  if (used == 0 && written - base >= kRewind) {
    base = written;
    r.base.store(base, std::memory_order_relaxed);
  }
  std::byte record[kRecord];
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(record, &length, sizeof length);
  std::memcpy(record + 4, &kind, sizeof kind);
  std::byte* const ring_begin = r.bytes();
  const std::uint64_t at = written - base;
  std::memcpy(ring_begin + at % capacity, record,
              kRecord);  // Never wraps: all sizes are multiples of 8.
  around(capacity, at + kRecord, bytes.size(),
         [&](std::size_t to, std::size_t from_byte, std::size_t n) {
           if (n != 0) std::memcpy(ring_begin + to, bytes.data() + from_byte, n);
         });
  written += needed;
  r.written.store(written, std::memory_order_release);
  dirty()[from.index() / 64].fetch_or(std::uint64_t{1} << from.index() % 64);
  return true;
}

Result<bool> Segment::pop(Rank from, Kind& kind, std::vector<std::byte>& out) {
  Ring& r = ring(from);
  const std::size_t capacity = ring_bytes(world_);
  std::uint64_t& read = sides_[from.index()].count;
  const std::uint64_t there = r.written.load(std::memory_order_acquire) - read;
  if (there == 0) return false;
  std::byte* const ring_begin = r.bytes();
  const std::uint64_t at = (read - r.base.load(std::memory_order_relaxed)) / 8 * 8;
  std::uint32_t length = 0;
  std::memcpy(&length, ring_begin + at % capacity, sizeof length);
  std::memcpy(&kind, ring_begin + at % capacity + 4, sizeof kind);
  const std::size_t taken = kRecord + round_up(length, 8);
  if (there > capacity || there % 8 != 0 || taken > there)
    return fail(Code::corrupt,
                fmt::format("a record of {} bytes in a ring that has {}", length, there));
  out.resize(length);
  around(capacity, at + kRecord, length, [&](std::size_t begin, std::size_t to, std::size_t n) {
    if (n != 0) std::memcpy(out.data() + to, ring_begin + begin, n);
  });
  read += taken;
  r.read.store(read, std::memory_order_release);
  return true;
}

std::uint64_t Segment::take_dirty(std::size_t word) {
  if (dirty()[word].load(std::memory_order_relaxed) == 0) return 0;
  return dirty()[word].exchange(0);
}

bool Segment::any_dirty() const {
  for (std::size_t w = 0; w < num_words(); ++w)
    if (dirty()[w].load() != 0) return true;
  return false;
}

void Segment::ask_for_room(Rank from) { ring(from).wants_room.store(1); }

bool Segment::wanted_room(Rank from) {
  Ring& r = ring(from);
  return r.wants_room.load() != 0 && r.wants_room.exchange(0) != 0;
}

void Segment::wake() {
  Header& h = header();
  // Pairs with sleep(); all four accesses are sequentially consistent: dirty is set before
  // `sleeping` is read here, and `sleeping` is set before dirty is read there.
  if (h.sleeping.load() == 0 || h.sleeping.exchange(0) == 0) return;
  h.wake_count.fetch_add(1);
  futex(h.wake_count, FUTEX_WAKE, INT_MAX, nullptr);
}

void Segment::sleep(Deadline until) {
  Header& h = header();
  const std::uint32_t seen = h.wake_count.load();
  h.sleeping.store(1);
  const auto left = until.is_never() ? std::chrono::nanoseconds(std::chrono::seconds(1))
                                     : until.time() - Deadline::Clock::now();
  if (!any_dirty() && left.count() > 0) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec timeout{static_cast<time_t>(seconds.count()),
                           static_cast<long>((left - seconds).count())};
    futex(h.wake_count, FUTEX_WAIT, seen, &timeout);
  }
  h.sleeping.store(0);
}

}  // namespace reshard::shm
