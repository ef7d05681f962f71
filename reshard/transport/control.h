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

/// The control plane: coordinates the ranks of a group with few, small messages. One object per
/// rank. Every rank makes the collective calls in the same order, from one thread at a time;
/// abort() and status() are thread-safe.
///
/// Errors of collective calls: `deadline` names the ranks that did not arrive; `aborted` if a rank
/// called abort() or close(); `invalid_argument` after close() on this rank. After an error the
/// ranks may disagree on which collective call is next, so only abort(), quiesce() and close() may
/// follow.
class ControlPlane {
 public:
  /// Calls close().
  virtual ~ControlPlane() = default;
  ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;

  /// Collective. Returns the bytes of each rank, by rank. Lengths may differ. Meant for kilobytes,
  /// not for weights.
  virtual Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine,
                                                                 Deadline deadline) = 0;

  /// Collective. Gathers the same number of bytes from every rank into `all`, by rank; `all` has
  /// size() * mine.size() bytes. Meant for every step: after a few calls with at most 4096 bytes
  /// per rank and 1 MiB in total it allocates nothing, and neither does barrier(). Further errors:
  /// `invalid_argument` if ranks give different numbers of bytes (the message names one; `all` is
  /// undefined, but the ranks still agree on the next call), or if `all` has the wrong size (this
  /// rank has not taken part then).
  virtual Result<> all_gather_into(std::span<const std::byte> mine, std::span<std::byte> all,
                                   Deadline deadline) = 0;

  /// Collective. Returns once every rank has called it. Writes to memory before the call are
  /// visible to all ranks after it.
  virtual Result<> barrier(Deadline deadline) = 0;

  /// Ends the group: every present and future wait on every rank, of this control plane and of the
  /// transports made with it, fails with `aborted`, this rank's number and `reason`. Only the first
  /// abort has an effect.
  virtual void abort(std::string_view reason) = 0;

  /// The `aborted` error once any rank has called abort(). Cheap: long copies call it repeatedly.
  virtual Result<> status() const = 0;

  /// The ranks that are known to have died or closed, ascending. After an abort because of a death
  /// every survivor knows at least the rank that caused it, so that the survivors can make a new
  /// group. Cheap and thread-safe.
  virtual std::vector<Rank> lost() const = 0;

  /// Adds to the progress of this rank, in bytes or another unit of the caller, and informs the
  /// group from time to time. Cheap and thread-safe; never waits; ignored after close() or an
  /// abort.
  virtual void report(std::int64_t amount) = 0;

  /// The sum that all ranks have reported, with a delay of at most a fraction of a second. For a
  /// progress bar over the whole job. Cheap and thread-safe.
  virtual std::int64_t reported() const = 0;

  /// Collective; also works after abort() and other errors. Returns once every rank has called it
  /// or has closed. From then on no peer uses memory that this rank passed to exchange() or share()
  /// before. Errors: `deadline` names the ranks that may still use it.
  virtual Result<> quiesce(Deadline deadline) = 0;

  /// Leaves the group: collective calls of other ranks that wait for this rank fail with `aborted`.
  /// Idempotent.
  virtual void close() = 0;
};

}  // namespace reshard
