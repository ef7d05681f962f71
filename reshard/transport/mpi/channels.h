// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/control.h"
#include "reshard/transport/deadline.h"

namespace reshard::mpi {

/// The two private communicators of a group, one for frames and one for bulks. In both, processes
/// have their ranks in the group.
///
/// Communicators are never freed: a peer may send into one after this process has left, and a
/// library that reuses the context id would deliver those messages in another communicator.
/// Instead, the next group of the same processes reuses them. Stale frames are recognised by the
/// number of their group; communicators with an unfinished bulk are not reused.
struct Channels {
  MPI_Comm frames = MPI_COMM_NULL;
  MPI_Comm bulks = MPI_COMM_NULL;
  std::uint64_t made = 0;    ///< the number of the group that created them.
  std::uint64_t group = 0;   ///< the number of the group that uses them.
  std::vector<int> members;  ///< rank of the group -> rank in MPI_COMM_WORLD.
  bool whole_world = false;  ///< every process of the launcher is a member.
};

/// Collective. Starts MPI and returns channels for a group, with a number that no earlier group of
/// its processes had. Errors, identical on every rank: `unsupported` if the ranks are not distinct
/// processes of one launcher, or one of them has no MPI; `aborted` with the message of MPI.
Result<Channels> take_channels(ControlPlane& control, Deadline deadline);

/// Returns channels for reuse. @pre every bulk that was started here has ended, and none was
/// cancelled
void give_back_channels(Channels channels);

/// To be called before MPI_Finalize(): receives frames for groups that this process has left, which
/// some libraries would report as lost.
void discard_late_frames();

/// The largest message tag in `comm`.
int largest_tag(MPI_Comm comm);

}  // namespace reshard::mpi
