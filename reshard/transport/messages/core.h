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

#include "reshard/base/ring_queue.h"
#include "reshard/transport/messages/frames.h"
#include "reshard/transport/messages/slab.h"
#include "reshard/transport/messages/table.h"
#include "reshard/transport/messages/wire.h"

namespace reshard::engine {

/// Up to this size a message always travels with its request: its record is no larger than one that
/// asks for it. Bytes.
inline constexpr std::size_t kTinyBytes = 64;
/// Up to this size it does while few such bytes are under way to the peer. Beyond it, the second
/// copy costs more than asking. Bytes.
inline constexpr std::size_t kEagerBytes = 4096;
/// Bytes of such messages, tiny ones aside, that a peer may have to keep for this rank.
inline constexpr std::size_t kEagerWindow = std::size_t{256} << 10;
/// Bytes that are pulled or copied between two looks at the wire, so that both directions, aborts
/// and deadlines get their turn.
inline constexpr std::size_t kPiece = std::size_t{1} << 20;
/// Bulks that this rank has granted at a time: enough to keep a link full while one ends and the
/// next begins, few enough that no library meets thousands (NCCL is known to deadlock then).
inline constexpr int kMaxBulks = 8;
/// As kMaxBulks, of small messages that were granted a frame. Together less than kEagerWindow.
inline constexpr int kMaxFramed = 48;
/// Room of a step, in messages, so that it need not grow from one use to the next.
inline constexpr std::size_t kLeastRoom = 32;
/// Steps that are kept for the next exchange.
inline constexpr std::size_t kSpareSteps = 64;
/// Messages that a peer may have announced before this rank expects them.
inline constexpr std::size_t kMaxArrivals = std::size_t{1} << 22;

/// One exchange. Lent to its event; used by the rank's thread alone.
struct Step {
  std::vector<std::uint64_t> tokens;  ///< of all messages; those that are done are stale.
  std::size_t left = 0;               ///< messages that are neither whole nor withdrawn.
  std::size_t lent = 0;               ///< messages whose memory is with the wire or a peer.
  std::optional<Error> error;         ///< the first one.
  std::optional<Deadline> told;       ///< until when it waits for its last words to get out.

  void fail(Error what) {
    if (!error) error = std::move(what);
  }
  /// As new, but for the room that it has.
  void clear() {
    tokens.clear();
    left = lent = 0;
    error.reset();
    told.reset();
  }
};

/// What one rank holds of all its messages, and how they advance. Used by one thread. Lives as long
/// as the transport or any of its events.
class Core final : public WireSink {
 public:
  /// @pre control outlives the call of close()
  Core(std::unique_ptr<Wire> wire, ControlPlane& control);

  Wire& wire() { return *wire_; }
  Rank rank() const { return rank_; }
  int size() const { return size_; }
  /// Errors: after close(), an abort, or the end of the wire.
  Result<> usable(std::string_view what) const;

  /// An empty step, to be given back when its event goes. @pre withdrawn, if it was posted
  std::unique_ptr<Step> new_step();
  void give_back(std::unique_ptr<Step> step);

  /// Starts the messages of a step. What cannot be started fails the step. @pre ranks are in range
  void post(Step& step, std::span<const Send> sends, std::span<const Recv> recvs);
  /// Moves a bounded amount without waiting; true when anything moved. Failures go to the steps.
  bool progress();
  /// False while peers may have to wait for what this rank has told them. @pre the step is whole
  bool told(Step& step);
  /// Sleeps, or spins if this was called few times in a row, until something may have happened.
  void pause(int times, Deadline deadline);
  /// Gives up what is left of the step. Returns when nobody touches its memory: at once, or after a
  /// short wait for what the wire is moving, or after closing the wire.
  void withdraw(Step& step);
  /// The deadline's error: what of the step is missing.
  Error late(const Step& step);
  void close();

  void on_frame(Rank from, std::span<const std::byte> frame) override;
  void on_bulk(BulkId id, Result<> outcome) override;
  void on_gone(Rank peer, Error why) override;

 private:
  enum class Side : std::uint8_t { none, send, recv };
  enum class State : std::uint8_t {
    posted,    ///< a receive nobody has sent to yet.
    rts_sent,  ///< a send that was announced; a receive whose bytes are to be had.
    eager,     ///< a send whose bytes went with the announcement.
    again,     ///< a receive that asked for another request.
    granted,   ///< both: the bytes are on their way.
    over,      ///< refused or given up by the peer: it knows.
  };
  struct Message {
    std::byte* data = nullptr;  ///< of a send only read.
    std::size_t bytes = 0;
    Step* step = nullptr;
    MessageId id{};
    Rank peer{};
    Side side = Side::none;
    State state = State::posted;
    Way way = Way::framed;
    bool lent = false;          ///< counted in step->lent.
    bool described = false;     ///< send: a pull may find it. receive: `arrival` has the place.
    bool answered = false;      ///< send: the receiver has it all.
    std::uint64_t remote = 0;   ///< the peer's token.
    std::size_t moved = 0;      ///< bytes pulled so far.
    std::uint32_t arrival = 0;  ///< in arrivals_, while described.
  };
  /// A message that a peer announced: waits for its receive, then keeps the place to pull from.
  struct UnexpectedMessage {
    Rank from{};
    MessageId id{};
    std::uint64_t token = 0;
    std::size_t bytes = 0;
    bool eager = false;                         ///< the bytes are here.
    std::unique_ptr<std::byte[]> payload = {};  ///< of eager ones beyond kTinyBytes.
    std::uint8_t inline_bytes = 0;
    std::array<std::byte, kMaxPlace> inlined{};  ///< tiny bytes, or the place.
  };
  struct Link {
    std::vector<std::byte> frame;  ///< records to be sent.
    std::size_t eager_out = 0;     ///< bytes under way, of kEagerWindow.
    std::size_t eager_in = 0;      ///< bytes kept here.
    std::size_t arrivals = 0;
    bool to_flush = false;
    std::optional<Error> gone;
  };

  // engine_core.cc: posting, matching, moving.
  void post_send(Step& step, const Send& send);
  void post_recv(Step& step, const Recv& recv);
  void arrive(Rank from, UnexpectedMessage arrival, std::span<const std::byte> bytes, Link& link);
  void match(std::uint32_t recv, UnexpectedMessage& arrival, std::span<const std::byte> bytes);
  bool move_pulls();
  bool pull_piece(std::uint32_t index, Message& recv, std::size_t& budget);
  bool grant_some();
  void send_cts(std::uint32_t index, Message& recv);
  void close_off(Message& message);
  void finish(std::uint32_t index);
  void finish_recv(std::uint32_t index);
  void release(std::uint32_t index);
  void drop_arrival(std::uint32_t index);
  void lend(Message& message);
  void unlend(Message& message);
  void answer(Rank to, const Record& record);
  void flush();
  std::size_t eager_limit() const;
  std::string describe(const Message& message) const;
  std::string describe(Rank from, MessageId id, Rank to) const;

  // engine_records.cc: what peers say. The text says what is wrong with it; empty: nothing.
  std::string handle(Rank from, const Record& record);
  void on_bye(Rank from, const Record& record);
  std::string on_rts(Rank from, const Record& record);
  std::string on_sender_record(Rank from, const Record& record);
  std::string on_receiver_record(Rank from, const Record& record);
  std::string on_again(std::uint32_t index, Message& send);
  std::string on_cts(std::uint32_t index, Message& send, const Record& record);
  void on_refuse(Message& send, const Record& record);
  std::string on_cancel(Rank from, const Record& record);
  void refuse(Rank to, std::uint64_t token, const Error& error);

  // engine_failures.cc: how it ends early.
  void withdraw_send(std::uint32_t index, Message& send, bool& revoke);
  void withdraw_recv(std::uint32_t index, Message& recv);
  std::string gave_up(const Message& message) const;
  void settle(Step& step);
  void fail_peer(Rank peer, const Error& error);
  void fail_all(const Error& error);
  Error explained(Error error);
  bool check_status();
  void shut(const Error& why);

  const std::unique_ptr<Wire> wire_;
  ControlPlane* control_;
  const Rank rank_;
  const int size_;
  std::vector<Link> links_;
  std::vector<Rank> to_flush_, flushing_;
  MessageTable table_;  ///< of receives until they are whole, and arrivals.
  Slab<Message> messages_;
  Slab<UnexpectedMessage> arrivals_;
  std::vector<std::unique_ptr<std::byte[]>> spare_payloads_;
  RingQueue<std::uint64_t> pulls_;    ///< receives whose bytes can be had, in order.
  RingQueue<std::uint64_t> for_cts_;  ///< receives that wait for a CTS.
  std::vector<Step*> steps_;          ///< undone.
  std::vector<std::unique_ptr<Step>> spare_steps_;
  int bulks_ = 0, framed_ = 0;  ///< granted and not in.
  std::uint64_t next_tag_ = 0;
  std::uint32_t polls_ = 0;
  std::optional<Error> aborted_;     ///< what control.status() said.
  std::optional<Error> over_;        ///< why nothing moves any more.
  std::optional<Error> first_loss_;  ///< why the first peer went that did.
  std::optional<Deadline> explain_until_;
  bool closed_ = false, wire_closed_ = false;
  bool crowded_ = false;  ///< others want this core.
};

}  // namespace reshard::engine
