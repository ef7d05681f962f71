// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/cuda/device.h"
#include "reshard/gpu_transport/nccl/halves.h"
#include "reshard/gpu_transport/nccl/library.h"
#include "reshard/transport/control.h"
#include "reshard/transport/group.h"
#include "reshard/transport/transport.h"

namespace reshard::nccl {

class NcclGroup;

/// "NCCL 2.27.3", or "" if there is no library.
std::string library_version();

/// Why NCCL cannot be used on this machine, or "".
std::string unavailable_reason();

/// Collective. Each rank gives a GPU of its own (TransportOptions::gpu). Messages may be in the
/// memory of that GPU, or in host memory, which is copied through the GPU.
///
/// NCCL matches messages by order and cannot withdraw them, so this transport guarantees less than
/// others:
///   - messages from one rank to another match by their order, not by id: of exchanges, then of
///     turns, then in the list. Ids serve errors, and messages to the own rank
///   - exchanges must be rounds (Capabilities::rounds, halves.h), as those of programs are, or as
///     ranks have them that wait for each exchange before the next
///   - sizes are not compared
///   - an event that fails, or is destroyed early, ends the group; its memory is free afterwards
///   - a peer that leaves is noticed through the control plane
///
/// Errors: `invalid_argument` without a GPU; `unsupported` if there is no driver or library, or
/// NCCL refuses, which all ranks learn; `deadline`; an abort. NCCL refuses two ranks on one GPU,
/// unless it has version 2.30 or later and the environment NCCL_MULTI_RANK_GPU_ENABLE=1.
Result<std::unique_ptr<Transport>> make_transport(ControlPlane& control,
                                                  const TransportOptions& options);

/// The same with this library and GPU, which must outlive it. Collective also if a rank has none:
/// the error, of all ranks, is then that of the first such rank.
Result<std::unique_ptr<Transport>> make_transport(
    ControlPlane& control, const Nccl& nccl, const Result<std::shared_ptr<const cuda::Device>>& gpu,
    Deadline deadline, const GroupLimits& limits = {});

/// A transport on a group that is ready.
std::unique_ptr<Transport> transport_of(std::shared_ptr<NcclGroup> group);

}  // namespace reshard::nccl
