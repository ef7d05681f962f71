// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/containers/ring_queue.h"
#include "reshard/transport/messages/frames.h"
#include "reshard/transport/messages/slab.h"
#include "reshard/transport/messages/table.h"
#include "reshard/transport/messages/wire.h"

namespace reshard::messages {

/// Messages up to this size are always sent eagerly: their record is no larger than an RTS. Bytes.
inline constexpr std::size_t kTinyBytes = 64;
/// Messages up to this size are sent eagerly while kEagerWindow allows. For larger ones the second
/// copy costs more than a round trip. Bytes.
inline constexpr std::size_t kEagerBytes = 4096;
/// Eager bytes, without those of tiny messages, that a peer may have to buffer for this rank.
inline constexpr std::size_t kEagerWindow = std::size_t{256} << 10;
/// Bytes that are pulled or copied between two polls of the wire, so that both directions, aborts
/// and deadlines get their turn.
inline constexpr std::size_t kPiece = std::size_t{1} << 20;
/// Bulks that this rank receives at a time: enough to keep a link full while one ends and the next
/// begins, few enough that no library has to handle thousands (with which NCCL is known to
/// deadlock).
inline constexpr int kMaxBulks = 8;
/// As kMaxBulks, for messages that come in a frame after a CTS. Together less than kEagerWindow.
inline constexpr int kMaxFramed = 48;
/// Initial capacity of a step in messages, so that it rarely grows.
inline constexpr std::size_t kInitialCapacity = 32;
/// Most steps that are kept for reuse.
inline constexpr std::size_t kSpareSteps = 64;
/// Most unexpected messages that this rank stores per peer.
inline constexpr std::size_t kMaxUnexpected = std::size_t{1} << 22;

/// The state of one exchange(). Owned by its event while that lives; used by one thread.
struct Step {
  std::vector<std::uint64_t> tokens;    ///< of all messages; stale for those that are done.
  std::size_t left = 0;                 ///< messages neither complete nor withdrawn.
  std::size_t lent = 0;                 ///< messages whose memory the wire or a peer uses.
  std::optional<Error> error;           ///< the first error.
  std::optional<Deadline> drain_until;  ///< how long it waits for its last frames to leave.

  void fail(Error what) {
    if (!error) error = std::move(what);
  }
  /// Resets everything but the capacity.
  void clear() {
    tokens.clear();
    left = lent = 0;
    error.reset();
    drain_until.reset();
  }
};

/// All messages of one rank: matches them, moves their bytes and ends them. Used by one thread at a
/// time. Shared by the transport and its events.
class Matcher final : public WireSink {
 public:
  /// @pre control lives until close()
  Matcher(std::unique_ptr<Wire> wire, ControlPlane& control);

  Wire& wire() { return *wire_; }
  Rank rank() const { return rank_; }
  int size() const { return size_; }
  /// Errors: if closed, aborted, or the wire has failed. `what` names the call.
  Result<> usable(std::string_view what) const;

  /// An empty step for an event, which gives it back. @pre of give_back(): withdrawn, if posted
  std::unique_ptr<Step> new_step();
  void give_back(std::unique_ptr<Step> step);

  /// Starts the messages of a step. A message that cannot start fails the step. @pre ranks are
  /// valid
  void post(Step& step, std::span<const Send> sends, std::span<const Recv> recvs);
  /// Moves a bounded number of bytes without waiting. True if anything moved. Errors go to the
  /// steps.
  bool progress();
  /// False while frames that peers may wait for have not left. @pre the step is complete
  bool drained(Step& step);
  /// Waits a little for something to happen: spins, then yields, then sleeps, as `times`, the
  /// number of calls in a row, grows.
  void pause(int times, Deadline deadline);
  /// Withdraws the incomplete messages of the step. Returns when nobody touches their memory any
  /// more: at once, after a short wait for bulks in flight, or after closing the wire.
  void withdraw(Step& step);
  /// The `deadline` error, which names what the step still misses.
  Error deadline_error(const Step& step);
  void close();

  void on_frame(Rank from, std::span<const std::byte> frame) override;
  void on_bulk(BulkId id, Result<> outcome) override;
  void on_gone(Rank peer, Error why) override;

 private:
  enum class Side : std::uint8_t { none, send, recv };
  enum class State : std::uint8_t {
    posted,    ///< receive: not matched yet.
    rts_sent,  ///< the receiver knows of the message; no bytes move yet.
    eager,     ///< send: its bytes went with its record.
    retry,     ///< receive: waits for another RTS, because the first one's method failed.
    cleared,   ///< the CTS was given; the bytes are on their way.
    over,      ///< ended early; the peer knows.
  };
  struct Message {
    std::byte* data = nullptr;  ///< only read if a send.
    std::size_t bytes = 0;
    Step* step = nullptr;
    MessageId id{};
    Rank peer{};
    Side side = Side::none;
    State state = State::posted;
    Method method = Method::framed;
    bool lent = false;         ///< counted in step->lent.
    bool described = false;    ///< send: a peer may pull it. receive: `source` is valid.
    bool answered = false;     ///< send: the receiver has all bytes.
    bool bulk = false;         ///< bytes are on a GPU, here or (receive) at the sender.
    std::uint64_t remote = 0;  ///< the peer's token.
    std::size_t moved = 0;     ///< bytes pulled so far.
    std::uint32_t source = 0;  ///< index in unexpected_ of the address to pull from.
  };
  /// A message that arrived before its receive was posted; then keeps the address to pull from.
  struct UnexpectedMessage {
    Rank from{};
    MessageId id{};
    std::uint64_t token = 0;
    std::size_t bytes = 0;
    bool eager = false;                         ///< its bytes came along.
    bool bulk = false;                          ///< its bytes are on a GPU.
    std::unique_ptr<std::byte[]> payload = {};  ///< the bytes of an eager message above kTinyBytes.
    std::uint8_t inline_bytes = 0;
    std::array<std::byte, kMaxAddress> inlined{};  ///< the bytes of a tiny message, or the address.
  };
  struct Link {
    std::vector<std::byte> frame;  ///< records to be sent.
    std::size_t eager_sent = 0;    ///< bytes of kEagerWindow in use.
    std::size_t eager_held = 0;    ///< bytes buffered here.
    std::size_t num_unexpected = 0;
    bool to_flush = false;
    std::optional<Error> gone;
  };

  // core.cc: posting, matching, moving.
  void post_send(Step& step, const Send& send);
  void post_recv(Step& step, const Recv& recv);
  void store_unexpected(Rank from, UnexpectedMessage rts, std::span<const std::byte> bytes,
                        Link& link);
  void match(std::uint32_t recv, UnexpectedMessage& rts, std::span<const std::byte> bytes);
  bool move_pulls();
  bool pull_piece(std::uint32_t index, Message& recv, std::size_t& budget);
  bool clear_some();
  void send_cts(std::uint32_t index, Message& recv);
  void detach(Message& message);
  void finish(std::uint32_t index);
  void finish_recv(std::uint32_t index);
  void release(std::uint32_t index);
  void drop_unexpected(std::uint32_t index);
  void lend(Message& message);
  void unlend(Message& message);
  void answer(Rank to, const Record& record);
  void flush();
  std::size_t eager_limit() const;
  bool framed(const Message& message) const;
  bool on_gpu(std::span<const std::byte> bytes) const;
  void return_window(const Message& message);
  void ask_again(Message& recv);
  std::string describe(const Message& message) const;
  std::string describe(Rank from, MessageId id, Rank to) const;

  // records.cc: handling of records from peers. Each returns what is wrong, or "".
  std::string handle(Rank from, const Record& record);
  void on_bye(Rank from, const Record& record);
  std::string on_rts(Rank from, const Record& record);
  std::string on_sender_record(Rank from, const Record& record);
  std::string on_receiver_record(Rank from, const Record& record);
  std::string on_retry(std::uint32_t index, Message& send);
  std::string on_cts(std::uint32_t index, Message& send, const Record& record);
  void on_refuse(Message& send, const Record& record);
  std::string on_cancel(Rank from, const Record& record);
  void refuse(Rank to, std::uint64_t token, const Error& error);

  // failures.cc: withdrawing, closing, lost peers.
  void withdraw_send(std::uint32_t index, Message& send, bool& revoke);
  void withdraw_recv(std::uint32_t index, Message& recv);
  std::string give_up_reason(const Message& message) const;
  void reclaim(Step& step);
  void fail_peer(Rank peer, const Error& error);
  void fail_all(const Error& error);
  Error cause_of(Error error);
  bool check_status();
  void shut_down(const Error& why);

  const std::unique_ptr<Wire> wire_;
  ControlPlane* control_;
  const Rank rank_;
  const int size_;
  const bool gpu_messages_;  ///< bytes may be on a GPU.
  std::vector<Link> links_;
  std::vector<Rank> to_flush_, flushing_;
  MessageTable table_;  ///< receives until they are complete, and unexpected messages.
  Slab<Message> messages_;
  Slab<UnexpectedMessage> unexpected_;
  std::vector<std::unique_ptr<std::byte[]>> spare_payloads_;
  RingQueue<std::uint64_t> pulls_;    ///< receives that can be pulled, in order.
  RingQueue<std::uint64_t> for_cts_;  ///< receives to which a CTS is due.
  std::vector<Step*> steps_;          ///< not done.
  std::vector<std::unique_ptr<Step>> spare_steps_;
  int bulks_ = 0, framed_ = 0;  ///< receives in flight.
  std::uint64_t next_tag_ = 0;
  std::uint32_t polls_ = 0;
  std::optional<Error> aborted_;     ///< the error of control.status().
  std::optional<Error> ended_;       ///< why the transport has ended.
  std::optional<Error> first_loss_;  ///< the error of the first peer that was lost.
  std::optional<Deadline> cause_until_;
  bool closed_ = false, wire_closed_ = false;
  bool crowded_ = false;  ///< other threads want this processor.
};

}  // namespace reshard::messages
