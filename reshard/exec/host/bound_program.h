// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "reshard/exec/conversion_verifier.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/program/program.h"
#include "reshard/transform/copy.h"
#include "reshard/transport/transport.h"

namespace reshard::host {

/// The memory of one buffer of a program.
struct BufferPlace {
  std::byte* address = nullptr;          ///< in this process; null if it is not mapped.
  const RemoteMemory* remote = nullptr;  ///< otherwise; must outlive the program.
  Index offset = 0;                      ///< of the buffer in `remote`. Bytes.
};

/// Writes bytes at an offset of a target that is not mapped. Called by several threads.
using PutSink = std::function<Result<>(const ProgramBuffer& target, Index offset,
                                       std::span<const std::byte> bytes)>;

/// The resources of a program. Everything is borrowed, and must outlive what runs it.
struct ProgramEnvironment {
  Transport* transport = nullptr;   ///< null if the program has no exchange and no get.
  ControlPlane* control = nullptr;  ///< null if the program has no barrier.
  WorkerPool* pool = nullptr;
  std::span<std::byte> staging = {};  ///< at least Program::staging_bytes.
  const PutSink* puts = nullptr;      ///< null if the program has no put.
};

/// A program's buffers resolved to addresses.
class BoundProgram {
 public:
  using Resolve = std::function<Result<BufferPlace>(const ProgramBuffer&)>;

  BoundProgram() = default;
  /// Borrows the program. `place` returns the place of source and target buffers that are mapped
  /// or got. Errors: those of `place`; out of memory.
  static Result<BoundProgram> make(const Program& program, const ProgramEnvironment& environment,
                                   const Resolve& place);

  /// The first byte of a buffer that is not scratch; null if it is not mapped.
  std::byte* address(BufferId buffer) const { return places_[buffer.index()].address; }

  /// Later tiles show the rows that they convert to the observer, and write no target; null: as
  /// usual. Errors: out of memory.
  Result<> observe(ConversionVerifier* observer);
  /// Runs the ops of a tile. Workers may run different tiles at once; only worker 0 may run a tile
  /// with gets. Errors: the transport's; those of puts.
  Result<> run(const ProgramStep& tile, int worker);

 private:
  Result<> resolve(const Resolve& place);
  void bind_pieces();
  std::byte* at(Place place, int worker) const;
  bool is_scratch(BufferId id) const {
    return program_->buffers[id.index()].kind == ProgramBuffer::Kind::scratch;
  }
  std::span<const CopyTask> tasks_of(const ProgramOp& op, int worker);
  Result<> run_gets(const ProgramOp& op);
  Result<> run_puts(const ProgramOp& op, int worker);
  Result<> flush();
  void run_other(const ProgramOp& op, int worker);
  void run_matrix(ProgramOp::Kind kind, const ProgramMatrix& m, int worker);
  void observe_matrix(ProgramOp::Kind kind, const ProgramMatrix& m, const RowPlaces& at, float amax,
                      int worker);
  void compare(std::span<const CopyTask> tasks, int worker);

  const Program* program_ = nullptr;
  ProgramEnvironment environment_;
  std::vector<BufferPlace> places_;            ///< by buffer.
  std::vector<CopyTask> tasks_;                ///< by piece; scratch addresses are null.
  std::vector<std::vector<CopyTask>> placed_;  ///< by worker: an op's tasks with its scratch.
  std::vector<bool> uses_scratch_;             ///< by piece.
  HostBuffer scratch_;
  Index scratch_stride_ = 0;
  ConversionVerifier* observer_ = nullptr;
  HostBuffer compared_;  ///< what would be written to the target, by worker.
  Index compared_stride_ = 0;
  std::vector<std::size_t> seen_;  ///< the latest unit, by worker.
  std::vector<Get> batch_;         ///< of gets that have not been issued.
};

}  // namespace reshard::host
