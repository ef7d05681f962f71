// SPDX-License-Identifier: Apache-2.0
// The decisions of the coordinator of a TCP control plane, without sockets: frames from ranks in,
// frames to ranks out. The rules are those of inproc/collective_state.h.
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

/// Used by one thread at a time. Ranks passed to its functions come from seat(), which checks them.
class CoordinatorState {
 public:
  /// Sends a frame to a rank, with `body` in place of its bytes unless that is null. Does nothing
  /// for ranks that are gone.
  using Out = std::function<void(Rank to, const Frame& frame, FrameBody body)>;

  /// `size` is that of rank 0, 1 to 65536.
  CoordinatorState(int size, Out out);

  /// Handles a join frame and returns the rank that joined. Returns nothing if it may not join;
  /// `refusal` is the answer then.
  std::optional<Rank> seat(const Frame& join, Frame& refusal);
  /// To be called after each seat(), once frames reach that rank.
  void start_if_complete();
  /// Handles a frame of a rank that joined. False if it was the rank's last frame or one that it
  /// may not send now: the rank has left then, and its connection is to be closed once its frames
  /// are sent. May swap the memory of the frame.
  bool on_frame(Rank from, Frame&& frame);
  /// The connection of a rank that joined was lost: the rank died.
  void on_lost(Rank rank);

  /// Sends changed tallies to the ranks for which `ready(rank)`.
  void send_tallies(const std::function<bool(Rank)>& ready);
  /// True if a tally may have to be sent.
  bool tallies_due() const { return tallies_due_; }

  bool started() const { return started_; }
  /// True once a rank has aborted the group, or died.
  bool aborted() const { return aborted_; }
  /// True if no more frames will come: all ranks are gone, or the group was refused.
  bool finished() const;

 private:
  enum class Waits { no, join, meet, quiesce };
  struct Member {
    bool seated = false;
    bool gone = false;  ///< left or died.
    bool here = false;  ///< in the collective in progress.
    Waits waits = Waits::no;
    std::uint64_t id = 0;        ///< of the request that it waits for.
    std::uint64_t quiesced = 0;  ///< calls of quiesce that did not time out.
    std::int64_t tally = 0, sent_tally = 0;
    std::uint64_t size = 0;  ///< the group size that it joined with.
    std::string agreement;   ///< its digest and then the settings, as received.
    std::string excerpt;
    std::vector<std::byte> given;
  };

  bool take(Rank from, Frame& frame);
  std::size_t first_to_differ() const;
  std::optional<std::string> disagreement(std::size_t reader, std::size_t differs) const;
  void meet(Rank from, Frame& frame);
  void complete();
  FrameBody all_given();
  void fail_if_impossible();
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
  std::string what_;                              ///< the collective in progress.
  std::shared_ptr<std::vector<std::byte>> body_;  ///< of the answer to the last collective.
  std::size_t num_seated_ = 0, num_here_ = 0, num_gone_ = 0, given_bytes_ = 0;
};

}  // namespace reshard::tcp
