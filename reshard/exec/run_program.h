// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "reshard/exec/conversion_verifier.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/program/program.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// The resources that a program is run with. All are borrowed.
struct ProgramGroup {
  Transport* transport;  ///< null for a program without messages and reads of peers.
  ControlPlane& control;
  WorkerPool& pool;
  /// Grown if it is too small. Kept by callers that run several programs.
  HostBuffer& staging;
};

/// The first byte of a local tensor of this process, which outlives the run; null if the tensor is
/// empty.
using MemoryOf = std::function<std::byte*(const ProgramBuffer&)>;

/// Runs a program once. Collective if it has barriers or messages. `observer` (null: none) as
/// host::ProgramExecutor::run(). Errors: `invalid_argument`, naming a local tensor without memory
/// by its number; out of memory; `deadline`; the transport's; the control plane's. After an error
/// with messages in progress the group is aborted.
Result<> run_program(const std::shared_ptr<const Program>& program, const ProgramGroup& group,
                     const MemoryOf& memory, Deadline deadline,
                     ConversionVerifier* observer = nullptr);

}  // namespace reshard
