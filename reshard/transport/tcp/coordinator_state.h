// SPDX-License-Identifier: Apache-2.0
// What the hub of a TCP control plane decides, without a socket: frames of ranks in, frames to
// ranks out. The rules are those of inproc_meeting.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/transport/tcp/frame.h"

namespace reshard::tcp {

/// One thread at a time. Ranks given to its functions come from seat(), which checks them.
class CoordinatorState {
 public:
  /// Sends a frame to a rank, with `body` in place of its bytes unless that is null; ranks that are
  /// gone ignore it.
  using Out = std::function<void(Rank to, const Frame& frame, FrameBody body)>;

  /// `size` is rank 0's, 1 to 65536.
  CoordinatorState(int size, Out out);

  /// Seats whoever sent this join frame. Nothing when it may not join; then `refusal` is its
  /// answer.
  std::optional<Rank> seat(const Frame& join, Frame& refusal);
  /// To be called after each seat(), once frames reach that rank.
  void start_if_complete();
  /// A frame of a seated rank. False when that was its last, or none that a rank may send now: the
  /// rank has then left, and its connection is to be closed once it has got its frames. The frame
  /// may have other memory afterwards.
  bool on_frame(Rank from, Frame&& frame);
  /// The connection of a seated rank is gone: the rank died.
  void on_lost(Rank rank);

  /// Tells every rank whose tally has changed, if `ready(rank)`.
  void send_tallies(const std::function<bool(Rank)>& ready);
  /// Somebody's tally may have to be told.
  bool tallies_due() const { return tallies_due_; }

  bool started() const { return started_; }
  /// No more frames will come: all ranks are gone, or the group was refused.
  bool finished() const;

 private:
  enum class Waits { no, join, meet, quiesce };
  struct Member {
    bool seated = false;
    bool gone = false;  ///< said bye or died.
    bool here = false;  ///< in the collective under way.
    Waits waits = Waits::no;
    std::uint64_t id = 0;        ///< of what it waits for.
    std::uint64_t quiesced = 0;  ///< calls of quiesce that did not give up.
    std::int64_t tally = 0, told = 0;
    std::uint64_t size = 0;  ///< as it joined.
    std::string agreement;   ///< its digest and then the settings, as they came.
    std::string excerpt;
    std::vector<std::byte> given;
  };

  bool take(Rank from, Frame& frame);
  std::size_t first_to_differ() const;
  std::optional<std::string> disagreement(std::size_t told, std::size_t differs) const;
  void meet(Rank from, Frame& frame);
  void complete();
  FrameBody all_given();
  void end_if_hopeless();
  void quiesce(Rank from, std::uint64_t id);
  void answer_quiesced();
  void leave(Rank from, std::uint64_t id);
  void abort(std::string text);
  void lose(Rank rank, bool died);

  void answer(Rank to, Code code, std::string text);
  void answer_done(Rank to, FrameBody body = nullptr);
  void to_all(const Frame& frame);
  Member& at(Rank rank) { return members_[rank.index()]; }
  template <class Predicate>
  std::string ranks_where(Predicate in) const;

  std::vector<Member> members_;
  Out out_;
  bool started_ = false, refused_ = false, aborted_ = false, tallies_due_ = false;
  std::string what_;                              ///< the collective under way.
  std::shared_ptr<std::vector<std::byte>> body_;  ///< of the last collective's answer.
  std::size_t num_seated_ = 0, num_here_ = 0, num_gone_ = 0, given_bytes_ = 0;
};

}  // namespace reshard::tcp
