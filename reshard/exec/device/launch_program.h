// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/program/program.h"

namespace reshard {
namespace device {
class ProgramLaunches;
}

/// The memory that a program without messages is launched with. Everything is borrowed.
struct LaunchMemory {
  /// The layouts of the memory that the program's buffers are in.
  const ModelLayout *source_layout = nullptr, *target_layout = nullptr;
  /// In the memory of the GPU; null if the program uses none.
  const RankBuffers *source = nullptr, *target = nullptr;
  /// At least shared_bytes(); programs that follow each other in a stream may share it.
  const cuda::Buffer* shared = nullptr;
};

/// A program of ranks whose memory is all on one GPU, as launches of kernels. Its barriers mean
/// nothing: whatever the stream had before is done. Move-only.
class LaunchedProgram {
 public:
  /// Staging and scratch memory of the GPU that a program needs.
  static Index shared_bytes(const Program& program);
  /// Errors: a tensor of the program without memory, or with memory elsewhere (named);
  /// `unsupported` for a program with messages; the driver's; memory that is short.
  static Result<LaunchedProgram> make(const Program& program, const LaunchMemory& memory,
                                      const std::shared_ptr<const cuda::Device>& device,
                                      int most_blocks);
  LaunchedProgram(LaunchedProgram&&) noexcept;
  LaunchedProgram& operator=(LaunchedProgram&&) noexcept;
  ~LaunchedProgram();

  /// Gives a stream all of the program. Neither waits nor allocates. Errors: the driver's.
  Result<> launch(const cuda::Stream& stream) const;
  std::size_t num_launches() const;

 private:
  explicit LaunchedProgram(std::unique_ptr<device::ProgramLaunches> launches);

  std::unique_ptr<device::ProgramLaunches> launches_;
};

}  // namespace reshard
