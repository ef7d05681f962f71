// SPDX-License-Identifier: Apache-2.0
// A peer's arena is mapped in windows as it is read. The file only grows, so a window stays valid
// whatever buffers are allocated and freed in it. Bytes beyond the size of the file are never
// touched, because that would fault; the size is refreshed when needed.
#include "reshard/transport/shm/peer_memory_map.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>

#include "reshard/memory/shared_arena.h"
#include "reshard/memory/stream_copy.h"

namespace reshard::shm {
namespace {

constexpr std::size_t kWindow = std::size_t{1} << 30;
constexpr std::uint64_t kPage = 4096;
/// Pieces from this size on are written past the caches, which they would not fit into. Bytes.
constexpr std::size_t kStreamed = std::size_t{256} << 10;
constexpr std::uint64_t kNowhere = ~std::uint64_t{0};
/// Larger than any file, and small enough that sums of offsets cannot overflow.
constexpr std::uint64_t kMaxOffset = std::uint64_t{1} << 56;

/// The content of an address from describe().
struct Source {
  std::uint64_t address;  ///< in the owner's process.
  std::uint64_t offset;   ///< in its arena, or kNowhere.
  std::uint64_t bytes;
  std::uint64_t revoked;  ///< the owner's revocation count at that time.
};

/// The content of a RemoteKey. The group's number tells it from keys of other groups and from
/// damaged ones.
struct Key {
  std::uint64_t group;
  std::uint64_t owner;
  std::uint64_t address;
  std::uint64_t offset;
  std::uint64_t bytes;
};

template <class T>
RemoteKey encode(const T& value) {
  RemoteKey bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::uint64_t offset_of(std::span<const std::byte> memory) {
  const auto found = shared_arena::find(memory);
  return found ? found->offset : kNowhere;
}

/// Most bytes of one call: the kernel truncates calls beyond 2 GiB.
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

/// Reads pieces of the memory of one process: one copy by the kernel, and one system call for up to
/// 1024 pieces; adjacent ones are joined. Errors: `aborted` if the process, which is rank `owner`,
/// has ended; `unsupported` if the kernel does not permit it.
class PeerReader {
 public:
  PeerReader(pid_t process, Rank owner) : process_(process), owner_(owner) {}
  Rank owner() const { return owner_; }

  /// Adds a piece; reads what was added once that is as much as a call can have.
  Result<> add(std::uint64_t address, std::span<std::byte> into) {
    for (std::size_t at = 0; at < into.size();) {
      const std::size_t bytes = std::min(into.size() - at, kMaxBytes - bytes_);
      append(local_, num_local_, reinterpret_cast<std::uintptr_t>(into.data()) + at, bytes);
      append(remote_, num_remote_, address + at, bytes);
      bytes_ += bytes;
      at += bytes;
      if (num_local_ == IOV_MAX || num_remote_ == IOV_MAX || bytes_ == kMaxBytes)
        RESHARD_TRY(read());
    }
    return {};
  }

  /// Reads all that was added and not yet read; resumes if the kernel stops early.
  Result<> read() {
    std::size_t local = 0, remote = 0;
    while (bytes_ > 0) {
      const ssize_t got = process_vm_readv(process_, &local_[local], num_local_ - local,
                                           &remote_[remote], num_remote_ - remote, 0);
      if (got <= 0) return failed(got == 0 ? EFAULT : errno);
      bytes_ -= static_cast<std::size_t>(got);
      local = skip(local_, local, static_cast<std::size_t>(got));
      remote = skip(remote_, remote, static_cast<std::size_t>(got));
    }
    num_local_ = num_remote_ = 0;
    return {};
  }

 private:
  using List = std::array<iovec, IOV_MAX>;

  static void append(List& list, std::size_t& n, std::uintptr_t at, std::size_t bytes) {
    if (n > 0) {
      iovec& last = list[n - 1];
      if (reinterpret_cast<std::uintptr_t>(last.iov_base) + last.iov_len == at) {
        last.iov_len += bytes;
        return;
      }
    }
    list[n++] = {reinterpret_cast<void*>(at), bytes};
  }

  static std::size_t skip(List& list, std::size_t i, std::size_t bytes) {
    while (bytes > 0 && bytes >= list[i].iov_len) bytes -= list[i++].iov_len;
    if (bytes > 0) {
      list[i].iov_base = static_cast<std::byte*>(list[i].iov_base) + bytes;
      list[i].iov_len -= bytes;
    }
    return i;
  }

  Result<> failed(int error) const {
    if (error == ESRCH)
      return fail(Code::aborted, fmt::format("rank {} is gone: its process ended", owner_.value()));
    return fail(Code::unsupported,
                fmt::format("the system does not permit reading memory of rank {}: {}",
                            owner_.value(), std::strerror(error)));
  }

  // The local and remote pieces of one call need not have the same boundaries.
  List local_, remote_;
  std::size_t num_local_ = 0, num_remote_ = 0, bytes_ = 0;
  pid_t process_;
  Rank owner_;
};

void copy_piece(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes >= kStreamed) {
    stream_copy(to, from, bytes);
  } else if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

messages::WireAddress PeerMemoryMap::describe(Rank to, std::span<const std::byte> bytes) {
  const std::uint8_t methods = peer(to).reached_by;
  const std::uint64_t offset = (methods & kMapped) != 0 ? offset_of(bytes) : kNowhere;
  if (offset == kNowhere && (methods & kReadv) == 0) return {};
  return messages::WireAddress::of(Source{reinterpret_cast<std::uint64_t>(bytes.data()), offset,
                                          bytes.size(), peer(rank_).segment.revoked().load()});
}

Result<> PeerMemoryMap::pull(Rank from, std::span<const std::byte> source, std::size_t offset,
                             std::span<std::byte> into) {
  Source s{};
  if (source.size() != sizeof s) return fail(Code::corrupt, "an address of the wrong size");
  std::memcpy(&s, source.data(), sizeof s);
  if (offset > s.bytes || into.size() > s.bytes - offset)
    return fail(Code::corrupt, "an address of less memory than the message has");
  if (s.offset != kNowhere && (peer(from).reach & kMapped) != 0) {
    if (!inside(from, s.offset, s.bytes))
      return fail(Code::corrupt, "an address outside the file of its owner");
    RESHARD_TRY(copy_mapped(from, s.offset + offset, into));
  } else if ((peer(from).reach & kReadv) != 0) {
    PeerReader reader(peer(from).pid, from);
    RESHARD_TRY(reader.add(s.address + offset, into));
    RESHARD_TRY(reader.read());
  } else {
    return fail(Code::unsupported, "no access to that memory");
  }
  // The owner increments the count before it reuses the memory, so bytes read before are valid. A
  // read-modify-write keeps the reads above from moving past this load.
  if (peer(from).segment.revoked().fetch_add(0, std::memory_order_acq_rel) != s.revoked)
    return fail(Code::unsupported, "the owner has revoked its memory");
  return {};
}

/// True if the range is inside the owner's file.
bool PeerMemoryMap::inside(Rank owner, std::uint64_t offset, std::uint64_t bytes) {
  if (offset > kMaxOffset || bytes > kMaxOffset) return false;
  View& view = views_[owner.index()];
  if (offset + bytes <= view.size) return true;
  struct stat s{};
  if (fstat(peer(owner).arena.get(), &s) != 0 || s.st_size < 0) return false;
  view.size = static_cast<std::uint64_t>(s.st_size);
  return offset + bytes <= view.size;
}

Result<std::byte*> PeerMemoryMap::window(Rank from, std::size_t number) {
  View& view = views_[from.index()];
  if (number >= view.windows.size()) view.windows.resize(number + 1);
  if (view.windows[number] == nullptr) {
    void* p = mmap(nullptr, kWindow, PROT_READ, MAP_SHARED, peer(from).arena.get(),
                   static_cast<off_t>(number * kWindow));
    if (p == MAP_FAILED)
      return fail(Code::unsupported,
                  fmt::format("mapping memory of rank {}: {}", from.value(), std::strerror(errno)));
    madvise(p, kWindow, MADV_HUGEPAGE);
    view.windows[number] = static_cast<std::byte*>(p);
  }
  return view.windows[number];
}

/// @pre inside(from, offset, into.size())
Result<> PeerMemoryMap::copy_mapped(Rank from, std::uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const std::size_t at = offset % kWindow;
    const std::size_t bytes = std::min(into.size(), kWindow - at);
    copy_piece(into.data(), RESHARD_TRY(window(from, offset / kWindow)) + at, bytes);
    offset += bytes;
    into = into.subspan(bytes);
  }
  return {};
}

Result<RemoteKey> PeerMemoryMap::share(std::span<std::byte> memory) {
  if (gpu_ && !memory.empty() && gpu_->contains(memory.data()))
    return fail(Code::unsupported, "this memory is on a GPU, where peers cannot read it in place");
  const std::uint64_t offset = offset_of(memory);
  for (std::size_t r = 0; r < all_.peers.size(); ++r) {
    const std::uint8_t methods = all_.peers[r].reached_by;
    if (r == rank_.index() || (methods & kReadv) != 0 ||
        ((methods & kMapped) != 0 && offset != kNowhere) || memory.empty())
      continue;
    return fail(Code::unsupported,
                fmt::format("rank {} cannot access this memory: {}", r,
                            (methods & kMapped) != 0
                                ? "it is not in a shared buffer, and reading it across processes "
                                  "is not permitted"
                                : "neither mapping nor reading across processes is permitted"));
  }
  return encode(Key{all_.group, static_cast<std::uint64_t>(rank_.value()),
                    reinterpret_cast<std::uint64_t>(memory.data()), offset, memory.size()});
}

Result<RemoteMemory> PeerMemoryMap::open(Rank owner, const RemoteKey& bytes) {
  Key key{};
  if (bytes.size() == sizeof key) std::memcpy(&key, bytes.data(), sizeof key);
  if (bytes.size() != sizeof key || key.group != all_.group ||
      key.owner != static_cast<std::uint64_t>(owner.value()) || key.bytes > kMaxOffset) {
    return fail(Code::corrupt,
                fmt::format("a memory key of {} bytes was not made by rank {} of this group; pass "
                            "on what its share() returned",
                            bytes.size(), owner.value()));
  }
  RemoteMemory memory{owner, key.bytes, nullptr, opened_.size()};
  const std::uint8_t reach = peer(owner).reach;
  if (owner == rank_) {
    memory.address = reinterpret_cast<std::byte*>(key.address);
  } else if (key.offset != kNowhere && (reach & kMapped) != 0 && key.bytes != 0) {
    if (!inside(owner, key.offset, key.bytes)) {
      return fail(Code::corrupt, fmt::format("a memory key of rank {} names {} bytes at {} of a "
                                             "smaller file",
                                             owner.value(), key.bytes, key.offset));
    }
    memory.address = RESHARD_TRY(map_whole(owner, key.offset, key.bytes));
  } else if ((reach & kReadv) == 0 && key.bytes != 0) {
    return fail(Code::unsupported, fmt::format("rank {} may not read memory of rank {}",
                                               rank_.value(), owner.value()));
  }
  opened_.push_back({owner, key.address, key.bytes});
  return memory;
}

Result<std::byte*> PeerMemoryMap::map_whole(Rank owner, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t begin = offset / kPage * kPage;
  const std::size_t size = offset - begin + bytes;
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, peer(owner).arena.get(),
                 static_cast<off_t>(begin));
  if (p == MAP_FAILED)
    return fail(Code::unsupported, fmt::format("mapping {} bytes of rank {}: {}", bytes,
                                               owner.value(), std::strerror(errno)));
  madvise(p, size, MADV_HUGEPAGE);
  mappings_.push_back({static_cast<std::byte*>(p), size});
  return mappings_.back().base + (offset - begin);
}

Result<> PeerMemoryMap::get(std::span<const Get> pieces) {
  const Result<> read = read_pieces(pieces);
  if (read || read.error().code != Code::unsupported) return read;
  return fail(Code::aborted, read.error().message);
}

Result<> PeerMemoryMap::read_pieces(std::span<const Get> pieces) {
  std::optional<PeerReader> reader;
  for (const Get& piece : pieces) {
    const RemoteMemory& from = *piece.from;
    if (from.handle >= opened_.size() || opened_[from.handle].owner != from.owner ||
        from.size > opened_[from.handle].bytes)
      return fail(Code::invalid_argument, "get from memory that this transport did not open");
    if (from.address != nullptr) {
      copy_piece(piece.into.data(), from.address + piece.offset, piece.into.size());
      continue;
    }
    if (reader && reader->owner() != from.owner) {
      RESHARD_TRY(reader->read());
      reader.reset();
    }
    if (!reader) reader.emplace(peer(from.owner).pid, from.owner);
    RESHARD_TRY(reader->add(opened_[from.handle].address + piece.offset, piece.into));
  }
  return reader ? reader->read() : Result<>();
}

void PeerMemoryMap::close() {
  for (View& view : views_)
    for (std::byte* window : view.windows)
      if (window != nullptr) munmap(window, kWindow);
  for (const Mapping& mapping : mappings_) munmap(mapping.base, mapping.bytes);
  views_.clear();
  mappings_.clear();
}

}  // namespace reshard::shm
