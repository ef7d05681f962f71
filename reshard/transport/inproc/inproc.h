// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/base/result.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// A group whose ranks are threads of one process. A message is copied once, from the sender's
/// memory to the receiver's, by the threads that wait for it: either side alone, or both in parts.
/// There are no extra threads, no staging, and no limit on the number or size of messages.
///
/// Each rank's thread takes its transport and its control plane from the group, once. They may
/// outlive the InprocGroup. Thread-safe.
class InprocGroup {
 public:
  /// A group of `size` ranks, 1 to 65536. Errors: `invalid_argument`.
  static Result<InprocGroup> create(int size);

  int size() const;

  /// The data plane of a rank, with the capabilities `message` and `direct`. Errors:
  /// `invalid_argument` if there is no such rank or its transport was taken before.
  Result<std::unique_ptr<Transport>> transport(Rank rank);

  /// The control plane of a rank; its abort() also ends the transports of this group. Errors: as
  /// transport().
  Result<std::unique_ptr<ControlPlane>> control(Rank rank);

 private:
  struct State;
  explicit InprocGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace reshard
