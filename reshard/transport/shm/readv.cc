// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/shm/readv.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

namespace reshard::shm {
namespace {

/// Bytes of one call: the kernel cuts what is beyond 2 GiB.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

/// The pieces of one call, in two lists that need not be cut at the same places.
class Batch {
 public:
  bool full() const { return num_local_ == IOV_MAX || num_remote_ == IOV_MAX; }
  bool empty() const { return num_local_ == 0; }
  std::size_t bytes() const { return bytes_; }

  void add(std::uint64_t address, std::span<std::byte> into) {
    append(local_, num_local_, reinterpret_cast<std::uintptr_t>(into.data()), into.size());
    append(remote_, num_remote_, address, into.size());
    bytes_ += into.size();
  }

  /// Reads all; the kernel may stop before the end, then again from there.
  Result<> read(pid_t process, Rank owner) {
    std::size_t local = 0, remote = 0;
    while (bytes_ > 0) {
      const ssize_t got = process_vm_readv(process, &local_[local], num_local_ - local,
                                           &remote_[remote], num_remote_ - remote, 0);
      if (got <= 0) return failed(owner, got == 0 ? EFAULT : errno);
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

  static Result<> failed(Rank owner, int error) {
    if (error == ESRCH)
      return fail(Code::aborted, fmt::format("rank {} is gone: its process ended", owner.value()));
    return fail(Code::unsupported, fmt::format("the system does not give memory of rank {}: {}",
                                               owner.value(), std::strerror(error)));
  }

  List local_, remote_;
  std::size_t num_local_ = 0, num_remote_ = 0, bytes_ = 0;
};

}  // namespace

Result<> read_memory(pid_t process, Rank owner, std::uint64_t address,
                     std::span<const Get> pieces) {
  Batch batch;
  for (const Get& piece : pieces) {
    for (std::size_t at = 0; at < piece.into.size();) {
      const std::size_t bytes = std::min(piece.into.size() - at, kMostBytes - batch.bytes());
      batch.add(address + piece.offset + at, piece.into.subspan(at, bytes));
      at += bytes;
      if (batch.full() || batch.bytes() == kMostBytes) RESHARD_TRY(batch.read(process, owner));
    }
  }
  if (!batch.empty()) RESHARD_TRY(batch.read(process, owner));
  return {};
}

}  // namespace reshard::shm
