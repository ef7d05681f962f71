// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/control.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// Identifies a message between two ranks. Sender and receiver must pass the same id; callers
/// choose ids freely.
using MessageId = StrongInt<struct MessageIdTag, std::uint64_t>;

/// A message to a rank: contiguous bytes, possibly none. `to` may be this rank.
struct Send {
  Rank to;
  MessageId id;
  std::span<const std::byte> bytes;
  /// The position of the message in an order that the ranks agree on, counted within its exchange;
  /// for transports that move messages in order. Equal turns: any order will do.
  std::uint32_t turn = 0;
};

/// The memory for a message from a rank. Must have the same size as the message.
struct Recv {
  Rank from;
  MessageId id;
  std::span<std::byte> bytes;
  std::uint32_t turn = 0;  ///< as Send::turn.
};

/// The operations that a transport supports.
struct Capabilities {
  bool message = false;  ///< exchange() works.
  /// share(), open() and get() work: ranks read the memory of their peers (and write it, if mapped)
  /// in place.
  bool direct = false;
  /// share() registers memory: senders write messages directly into registered memory, without an
  /// intermediate copy. Share the memory that receives large messages, once.
  bool registers = false;
  /// The bytes of a message may be in the memory of the transport's GPU (TransportOptions::gpu) as
  /// well as in host memory. Host code never touches such bytes. All writes to them must be done,
  /// not only in a stream, before exchange().
  bool gpu_messages = false;
  /// Exchanges move one after another, so they must be rounds: the ranks begin exchanges that are
  /// parts of common ones, each message in the same one on both sides, in a common order. Ranks
  /// without a message in a round need not take part. Law 8 in program.h has the exact rule.
  bool rounds = false;
  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

/// The completion of one exchange(). Used by the thread that uses its transport; may outlive the
/// transport.
///
/// Every event completes, also on failure. Until then the memory of its messages must not be
/// touched. Bytes move while a caller is in test() or wait(): a transport needs no thread of its
/// own. Destroying an incomplete event withdraws its messages and returns once nobody touches their
/// memory.
class Event {
 public:
  virtual ~Event() = default;
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// True once every message of the exchange is complete. Moves a bounded number of bytes, so that
  /// polling alone completes the event. An error completes it, too.
  virtual Result<bool> test() = 0;

  /// Waits until every message is complete, or for the first error; the event is done in both
  /// cases. Errors: `deadline` names a missing message; `invalid_argument` if the sizes of sender
  /// and receiver differ (both get the error) or an id is in use twice; `aborted` if a peer closed
  /// its transport or withdrew a message of this exchange, or any rank called
  /// ControlPlane::abort(). Further calls return the same result.
  virtual Result<> wait(Deadline deadline) = 0;
};

/// An opaque key for shared memory, returned by its owner's share(). Send it to the peers with
/// ControlPlane::all_gather().
using RemoteKey = std::vector<std::byte>;

/// The memory of a peer, from Transport::open(). A value; the mapping belongs to the transport and
/// is valid until its close().
struct RemoteMemory {
  Rank owner;
  std::size_t size = 0;          ///< bytes.
  std::byte* address = nullptr;  ///< where it is mapped in this process; null if only get() works.
  std::uint64_t handle = 0;      ///< for use by the backend.
};

/// A read of bytes [offset, offset + into.size()) of a peer's memory. May be empty.
struct Get {
  const RemoteMemory* from = nullptr;  ///< not null; borrowed for the call.
  std::size_t offset = 0;
  std::span<std::byte> into;
};

/// The data plane: moves bytes between the ranks of a group without interpreting them. One object
/// per rank, used by one thread at a time.
///
/// A send matches the receive with the same (sender, receiver, id), in whatever order they are
/// posted. An id may be used again between the same two ranks once the event of its earlier use is
/// done on both.
///
/// After an event has failed, backends guarantee only close() here and abort(), quiesce() and
/// close() of the control plane: abort, quiesce, and make a new group.
class Transport {
 public:
  /// Calls close().
  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// The name in the registry: "inproc", "mpi", ...
  virtual std::string_view name() const = 0;
  virtual Rank rank() const = 0;
  /// The number of ranks in the group; they are 0 to size() - 1.
  virtual int size() const = 0;
  virtual Capabilities capabilities() const = 0;

  /// Starts a batch of messages and returns without waiting for a peer. Copies the two lists and
  /// borrows the bytes that they point to until the event is done: the caller must not write sends,
  /// must neither read nor write receives, and receives must not overlap each other or a send.
  /// Errors: `invalid_argument` for a rank outside the group or after close(); `aborted` after an
  /// abort.
  virtual Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                                  std::span<const Recv> recvs) = 0;

  /// Gives every rank of the group access to `memory`. It must stay allocated until a successful
  /// ControlPlane::quiesce() after the peers' last use, or until close(). Errors: `unsupported` if
  /// capabilities() has neither `direct` nor `registers`, or this memory cannot be shared.
  virtual Result<RemoteKey> share(std::span<std::byte> memory) = 0;

  /// The memory that `owner` shared. If it is mapped, only the control plane orders reads and
  /// writes through its address with those of the owner: a barrier() makes earlier writes visible.
  /// Errors: `corrupt` if the key is not of this group; `unsupported` if capabilities().direct is
  /// false or this rank may not access that memory (the message says why).
  virtual Result<RemoteMemory> open(Rank owner, const RemoteKey& key) = 0;

  /// Reads pieces of peers' memory, mapped or not, and returns when all bytes have arrived. One
  /// copy; optimised for many short pieces, those of one owner after one another, in ascending
  /// order of offset. Errors: `invalid_argument` for a piece beyond the end of its memory (nothing
  /// is read then); `aborted` if an owner is gone.
  virtual Result<> get(std::span<const Get> pieces) = 0;

  /// Leaves the group: incomplete events of this rank fail with `aborted`, as do all present and
  /// future messages of peers with it. Harmless once all events of this rank are done. Idempotent.
  virtual void close() = 0;
};

}  // namespace reshard
