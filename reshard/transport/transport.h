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

/// Names one message between two ranks. Sender and receiver must give it the same id; how the ids
/// are chosen is the caller's affair.
using MessageId = StrongInt<struct MessageIdTag, std::uint64_t>;

/// One contiguous run of bytes to a peer. Zero bytes are a message too, and `to` may be this rank.
struct Send {
  Rank to;
  MessageId id;
  std::span<const std::byte> bytes;
};

/// Room for one message from a peer. Its size must be the sender's.
struct Recv {
  Rank from;
  MessageId id;
  std::span<std::byte> bytes;
};

/// What a transport can do; a caller chooses its path by it.
struct Capabilities {
  bool message = false;  ///< exchange() works.
  /// share(), open() and get() work: a peer's memory is read (and, where it is mapped, written) in
  /// place.
  bool direct = false;
  /// share() registers: messages from and to shared memory are written by the sender where they
  /// belong, without a copy between. Share what receives large messages, once.
  bool registers = false;
  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

/// The completion of one exchange(). Used from the thread that uses its transport; may outlive the
/// transport.
///
/// Every event completes, also on failure, and only then does the memory of its messages belong to
/// the caller again. Waiting is what moves the bytes: a transport needs no thread of its own.
/// Destroying an event that is not done gives its messages up and returns once nobody touches their
/// memory.
class Event {
 public:
  virtual ~Event() = default;
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// True once every message of the exchange is whole; false while some are under way. Moves a
  /// bounded amount of bytes, so that a caller who only polls gets there. An error completes the
  /// event.
  virtual Result<bool> test() = 0;

  /// Returns when every message is whole, or with the first error; the event is done in both cases.
  /// Errors: `deadline` names what was missing; `invalid_argument` when a sender and a receiver
  /// gave different sizes (both get it), or an id was used twice; `aborted` when a peer closed its
  /// transport or gave up a message of this exchange, or any rank called ControlPlane::abort().
  /// Calling it again repeats the answer.
  virtual Result<> wait(Deadline deadline) = 0;
};

/// The name of shared memory, given by its owner's share(), for ControlPlane::all_gather(). Opaque.
using RemoteKey = std::vector<std::byte>;

/// A peer's memory as this rank reaches it, from Transport::open(). A value; what it names belongs
/// to the transport and lives until its close().
struct RemoteMemory {
  Rank owner;
  std::size_t size = 0;          ///< bytes.
  std::byte* address = nullptr;  ///< where it is mapped here; null when only get() reaches it.
  std::uint64_t handle = 0;      ///< the backend's own.
};

/// Bytes [offset, offset + into.size()) of a peer's memory and where they go. An empty one is
/// allowed.
struct Get {
  std::size_t offset = 0;
  std::span<std::byte> into;
};

/// The data plane: moves bytes between the ranks of one group and knows nothing of what they mean.
/// One object per rank, used from one thread at a time.
///
/// A send meets the receive with the same (sender, receiver, id). The two may be posted in either
/// order, and among others in any order. An id may be used again between the same two ranks once
/// the event of its earlier use is done on both.
///
/// After an event fails, the only calls that every backend promises to serve are close() here and
/// abort(), quiesce() and close() of the control plane: abort, quiesce, and make a new group.
class Transport {
 public:
  /// As close().
  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// As in the registry: "inproc", "mpi", ...
  virtual std::string_view name() const = 0;
  virtual Rank rank() const = 0;
  /// Ranks of the group, which are 0 to size() - 1.
  virtual int size() const = 0;
  virtual Capabilities capabilities() const = 0;

  /// Starts all messages of one step together and returns without waiting for a peer. The two lists
  /// are copied; the bytes they point to are borrowed until the event is done: sends must not be
  /// written, receives must be neither read nor written, and receives must not overlap each other
  /// or a send. Errors: `invalid_argument` for a rank outside the group or after close(); `aborted`
  /// after an abort.
  virtual Result<std::unique_ptr<Event>> exchange(std::span<const Send> sends,
                                                  std::span<const Recv> recvs) = 0;

  /// Lets every rank of the group reach `memory`. It must stay allocated until this rank returned
  /// from a successful ControlPlane::quiesce() that follows the peers' last use, or called close().
  /// Errors: `unsupported` when neither capabilities().direct nor .registers, or such memory cannot
  /// be shared.
  virtual Result<RemoteKey> share(std::span<std::byte> memory) = 0;

  /// The memory that `owner` shared. Where it is mapped, reads and writes through its address are
  /// ordered with the owner's only by the control plane: barrier() makes what came before it
  /// visible. Errors: `corrupt` when the key is not one of this group; `unsupported` when
  /// capabilities().direct is false, or this rank may not reach that memory (the text says what
  /// forbids it).
  virtual Result<RemoteMemory> open(Rank owner, const RemoteKey& key) = 0;

  /// Reads pieces of a peer's memory, mapped or not, and returns when all bytes are here. One copy;
  /// made for many short pieces in ascending order of offset. Errors: `invalid_argument` for a
  /// piece beyond the memory's end (nothing is read then); `aborted` when the owner is gone.
  virtual Result<> get(const RemoteMemory& from, std::span<const Get> pieces) = 0;

  /// Leaves the group: undone events of this rank fail with `aborted`, and so does every message
  /// that a peer has or will have with it. A rank that waited for all its events leaves without
  /// harm to anyone. Calling it again does nothing.
  virtual void close() = 0;
};

}  // namespace reshard
