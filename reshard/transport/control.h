// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// The control plane: agreement between the ranks of a group by few and small messages. One object
/// per rank. Collective calls are made by every rank in the same order, from one thread at a time;
/// abort() and status() may be called from any thread at any time.
///
/// Errors of collective calls: `deadline` names the ranks that did not arrive; `aborted` when some
/// rank called abort() or close(); `invalid_argument` after close() on this rank. After an error
/// the ranks no longer agree on which collective is next, so the only ways on are abort(),
/// quiesce() and close().
class ControlPlane {
 public:
  /// As close().
  virtual ~ControlPlane() = default;
  ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;

  /// Collective. What each rank gave, by rank. Lengths may differ; for kilobytes, not for weights.
  virtual Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine,
                                                                 Deadline deadline) = 0;

  /// Collective. The same of as many bytes on every rank, into `all`: size() times mine.size()
  /// bytes, by rank. For agreements of every step: once ranks have called it a few times with up to
  /// 4096 bytes each, and 1 MiB in all, it allocates nothing, and neither does barrier(). Errors:
  /// also `invalid_argument` where ranks give different numbers of bytes (one is named, `all` is
  /// undefined and the ranks still agree on what is next), and where `all` is of another size (then
  /// this rank took no part).
  virtual Result<> all_gather_into(std::span<const std::byte> mine, std::span<std::byte> all,
                                   Deadline deadline) = 0;

  /// Collective. Returns once every rank has called it; what a rank wrote to memory before is
  /// visible to all after.
  virtual Result<> barrier(Deadline deadline) = 0;

  /// Ends the group for good: every pending and future wait on every rank, of this control plane
  /// and of the transports made with it, fails with `aborted`, this rank's number and `reason`. The
  /// first abort counts, later ones do nothing.
  virtual void abort(std::string_view reason) = 0;

  /// The `aborted` error once any rank has called abort(). Cheap: long copies ask it as they go.
  virtual Result<> status() const = 0;

  /// Ranks that are known to have died or closed, ascending. After an abort for that reason every
  /// rank that lives knows at least the one that was the reason, so that the survivors can make a
  /// new group. Cheap, from any thread.
  virtual std::vector<Rank> lost() const = 0;

  /// Adds to the tally of this rank's work, in units of the caller (bytes), and tells the group now
  /// and then. Cheap, never waits, from any thread; a closed or aborted group ignores it.
  virtual void report(std::int64_t amount) = 0;

  /// The sum of what all ranks reported, as far as it is known here: it may lag by a fraction of a
  /// second. For one progress bar over a whole job. Cheap, from any thread.
  virtual std::int64_t reported() const = 0;

  /// Collective, and works after abort() and other errors: returns once every rank has called it or
  /// has closed. From then on no peer uses memory that this rank lent or shared before. Errors:
  /// `deadline` names the ranks that may still use it.
  virtual Result<> quiesce(Deadline deadline) = 0;

  /// Leaves the group: collective calls that wait for this rank fail on the others with `aborted`.
  /// Calling it again does nothing.
  virtual void close() = 0;
};

}  // namespace reshard
