// SPDX-License-Identifier: Apache-2.0
// How messages move. The sender puts a segment into an incoming slot of the receiver (staging.h)
// and signals its number; the receiver, which looks at the words of its peers again and again,
// copies the segment to its place and returns the slot by a signal.
//
// No stream ever waits for a peer: the wait for a signal is given to a stream only after the host
// has seen that signal (it is what makes the segment visible to the GPU where a network card wrote
// it). So what is given to streams always ends by itself, an abort has nothing to release, and
// peers only ever write into incoming slots and words, never into memory of the caller.
//
// Matching. A segment carries the id and the size of its message. Messages of one sender arrive in
// the order in which it passed them to exchange(), those of one call by their turns; each is
// matched with any posted receive of that id. One whose receive is not posted yet stays in its
// slot, and those behind it wait.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reshard/base/containers/ring_queue.h"
#include "reshard/cuda/memory.h"
#include "reshard/gpu_transport/nvshmem/lane.h"
#include "reshard/gpu_transport/nvshmem/library.h"
#include "reshard/gpu_transport/nvshmem/staging.h"
#include "reshard/transport/transport.h"

namespace reshard::nvshmem {

/// A group's share of the NVSHMEM world of this process.
struct Membership {
  const Library* library = nullptr;
  std::shared_ptr<const cuda::Device> device;
  std::byte* base = nullptr;  ///< symmetric memory, zero at the start of the group but for slots.
  Staging staging;
  std::vector<int> pes;  ///< by rank. Words and slots of a peer are found by its rank.
  Rank rank;
  bool waits = false;       ///< streams may wait for signals.
  std::uint64_t group = 0;  ///< the same on all ranks; differs between groups.
};

struct Step;

/// One side of one message.
struct Message {
  Step* step = nullptr;
  bool sending = false, on_device = false;
  bool begun = false;  ///< a segment of it was given to a stream.
  bool done = false;   ///< all of it was given to a stream; if sending, the receiver has it.
  Rank peer;
  MessageId id;
  std::byte* bytes = nullptr;
  std::size_t size = 0, given = 0;
  int unanswered = 0;  ///< segments that the receiver has not copied out yet.
};

/// One exchange.
struct Step {
  std::vector<Message> messages;
  std::size_t left = 0;      ///< messages that are not done.
  std::uint64_t copied = 0;  ///< the number, in the lane of copies, of its last one.
  bool done = false;
  std::optional<Error> error;
};

/// All exchanges of one rank: what its transport and its events share. Used by one thread at a
/// time.
class Exchanger {
 public:
  /// `control` must outlive it, or close() must be called before. Errors: `unsupported` if streams
  /// may not wait and a network is between two ranks; the driver's.
  static Result<std::shared_ptr<Exchanger>> make(ControlPlane& control, Membership member);
  ~Exchanger();
  Exchanger(const Exchanger&) = delete;
  Exchanger& operator=(const Exchanger&) = delete;

  Rank rank() const { return member_.rank; }
  int size() const { return static_cast<int>(member_.pes.size()); }

  /// Posts the messages of a step; the step must stay until it is done or withdrawn. Errors: as
  /// Transport::exchange(), and for an id in use.
  Result<std::unique_ptr<Step>> post(std::span<const Send> sends, std::span<const Recv> recvs);

  /// Does what can be done without waiting. True if anything moved. Errors end all steps.
  bool progress();

  /// Takes back a step that is not done: silently, if none of its messages has begun; otherwise
  /// the group ends.
  void withdraw(Step& step);
  /// Ends the group with the error of a step whose deadline has passed.
  void expire(const Step& step);

  /// Tells the peers that nothing else comes, and waits for the own work, a few seconds at most.
  /// Steps that are not done fail. Idempotent.
  void close();
  /// False if work of this group may still run on the GPU after close().
  bool is_drained() const { return drained_; }

 private:
  struct Sent {
    Message* message = nullptr;
    std::uint64_t check = 0;
  };
  struct Peer {
    int pe = 0;
    std::size_t lane = 0;
    bool direct = false;                   ///< puts may start from any memory of this GPU.
    bool has_ended = false;                ///< seen in an earlier look at its words.
    std::uint64_t sent = 0, received = 0;  ///< segments.
    RingQueue<Message*> queue;             ///< to send: not wholly given.
    Sent slots[kSlots];                    ///< of the peer: what is in them.
    Message* arriving = nullptr;           ///< some of its segments have come.
    std::unordered_map<std::uint64_t, Message*> sends, recvs;  ///< not done, by id.
    bool is_idle() const { return sends.empty() && recvs.empty(); }
  };

  Exchanger(ControlPlane& control, Membership member)
      : control_(&control), member_(std::move(member)) {}
  Result<> set_up();

  Result<> check_usable() const;
  Result<> add(Step& step, bool sending, Rank peer, MessageId id, std::span<const std::byte> bytes);
  Result<bool> advance();
  Result<> look_at_words();
  Result<bool> read_words();
  Result<bool> take_answers(Rank rank, const PeerWords& words);
  Result<bool> take_segments(Rank rank, const PeerWords& words);
  Result<Message*> arrived(Rank rank, const SlotWords& words);
  Result<> copy_out(Rank rank, Message& message);
  Error refuse(Rank rank, const Message& message, std::uint64_t check, std::uint64_t bytes);
  Result<> check_ending(Rank rank, const PeerWords& words);
  Result<bool> put_segments(Rank rank);
  Result<> put_segment(Rank rank, Message& message);
  void finish(Message& message);
  bool settle();

  /// Ends all steps with this error; afterwards their memory belongs to the callers again.
  void fail_all(Error why);
  void tell(std::uint64_t how);
  void drain();

  Peer& peer(Rank rank) { return peers_[static_cast<std::size_t>(rank.value())]; }
  template <class F>
  Result<> call(std::string_view what, F&& f) const;
  Result<> signal(const Lane& lane, std::uint64_t* word, std::uint64_t value, int pe) const;
  /// Symmetric addresses: of the words about `rank`, and of those that this rank writes at a peer.
  PeerWords* words(Rank rank) const;
  std::byte* at(std::size_t offset) const { return member_.base + offset; }

  ControlPlane* control_;  ///< null after close().
  Membership member_;
  std::vector<Lane> puts_;  ///< a peer has one of these lanes.
  std::optional<Lane> copies_, looks_;
  cuda::Buffer seen_;  ///< PeerWords of all ranks, as they were at the last look.
  bool looking_ = false;
  std::vector<Peer> peers_;  ///< by rank.
  std::vector<Step*> undone_;
  std::optional<Error> over_;
  bool drained_ = true;
};

}  // namespace reshard::nvshmem
