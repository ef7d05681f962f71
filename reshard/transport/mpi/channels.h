// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/control.h"
#include "reshard/transport/deadline.h"

namespace reshard::mpi {

/// The two private communicators of a group, so that frames and bulks cannot meet. In both, a
/// process has its rank of the group.
///
/// Communicators are never freed: a peer may still send into one after this process has left, and a
/// library that gives a freed one's number away again would take those messages for the next one's.
/// Instead the next group of the same processes uses them again. Frames that an earlier group left
/// behind are told by the group's number; communicators in which a bulk was left behind are not
/// given back.
struct Channels {
  MPI_Comm frames = MPI_COMM_NULL;
  MPI_Comm bulks = MPI_COMM_NULL;
  std::uint64_t made = 0;    ///< the number of the group that made them.
  std::uint64_t group = 0;   ///< the number of the group that has them.
  std::vector<int> members;  ///< rank of the group -> rank in MPI_COMM_WORLD.
  bool whole_world = false;  ///< every process of the launcher is a member.
};

/// Collective. Starts MPI and gives a group its channels, with a number that no earlier group of
/// any of its processes had. Errors, the same on every rank: `unsupported` when the processes are
/// not different ones of one launcher, or one of them has no MPI; `aborted` with MPI's words.
Result<Channels> take_channels(ControlPlane& control, Deadline deadline);

/// After the last use, for the next group. Only when every bulk that was started here has ended and
/// none was cancelled.
void give_back_channels(Channels channels);

/// Before MPI_Finalize(): takes the frames that peers sent to groups that this process had left,
/// which some libraries report as lost.
void discard_late_frames();

/// The largest tag of a message in `comm`.
int largest_tag(MPI_Comm comm);

}  // namespace reshard::mpi
