// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/base/result.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// Ranks as threads of one process. A message is copied once, from the sender's memory into the
/// receiver's, by the threads that wait for it: either side alone, or both with a part each. No
/// thread of its own, no staging, no limit on the number or the size of messages.
///
/// create() makes the meeting point; each rank's thread takes its two ends from it, once.
/// The ends outlive the InprocGroup. Any thread may call anything here.
class InprocGroup {
 public:
  /// A group of `size` ranks, 1 to 65536. Errors: `invalid_argument`.
  static Result<InprocGroup> create(int size);

  int size() const;

  /// Rank's end of the data plane, `message` and `direct`.
  /// Errors: `invalid_argument` when there is no such rank, or its end was taken.
  Result<std::unique_ptr<Transport>> transport(Rank rank);

  /// Rank's end of the control plane; its abort() reaches the transports of this group too. Errors:
  /// as above.
  Result<std::unique_ptr<ControlPlane>> control(Rank rank);

 private:
  struct State;
  explicit InprocGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace reshard
