// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "reshard/cuda/tiles/matrix_runner.h"
#include "reshard/cuda/tiles/tile_runner.h"
#include "reshard/program/program.h"

namespace reshard::device {

/// The first byte of a source, a target or the staging, as kernels of the GPU address it.
using AddressOf = std::function<Result<std::byte*>(const ProgramBuffer&)>;
/// The address of each buffer; null for scratch and for what has no bytes. Errors: those of
/// `address`; `unsupported` for a source or target that is not mapped.
Result<std::vector<std::byte*>> addresses_of(const Program& program, const AddressOf& address);

struct LaunchOptions {
  int most_blocks = 0;  ///< as TileRunner::make().
  /// Memory of the GPU, at least ProgramLaunches::scratch_bytes_of(); null: the launches allocate
  /// their own.
  std::byte* scratch = nullptr;
};

/// The tiles of a program as launches of kernels. Tiles that no message leads to run all together:
/// op by op, in few launches, whatever the number of tensors. The others run one at a time. Tables
/// and scratch memory stay on the GPU: made once, launched repeatedly.
class ProgramLaunches {
 public:
  /// The most scratch memory that a program needs on a GPU.
  static Index scratch_bytes_of(const Program& program);
  /// `addresses` as addresses_of(). Errors: those of the runners' tables; memory that is short; the
  /// driver's.
  static Result<ProgramLaunches> make(const Program& program, std::span<std::byte* const> addresses,
                                      const std::shared_ptr<const cuda::Device>& device,
                                      const LaunchOptions& options);

  /// True if the tile waits for other such tiles only, and for the first barrier.
  bool is_resident(StepId tile) const { return resident_[tile.index()]; }
  bool has_residents() const { return first_launch_.front() > 0; }
  /// Gives a stream all tiles that are resident, or one that is not, whose waits are done or ahead
  /// in the stream. All launches of the latter use one stream. Neither waits nor allocates. Errors:
  /// the driver's.
  Result<> launch_residents(const cuda::Stream& stream) const {
    return launch(stream, 0, first_launch_.front());
  }
  Result<> launch(const cuda::Stream& stream, StepId tile) const {
    return launch(stream, first_launch_[tile.index()], first_launch_[tile.index() + 1]);
  }
  /// Kernels that launch_residents() launches.
  std::size_t num_resident_launches() const;
  /// Memory of the GPU for ops that follow each other in a tile.
  Index scratch_bytes() const { return scratch_.size(); }  ///< that it allocated.

 private:
  class Builder;
  enum class Kernel : std::uint8_t { copies, amaxes, maxima, quantise, dequantise };
  struct Launch {
    Kernel kernel = Kernel::copies;
    std::size_t level = 0;  ///< of the runner's table.
  };

  Result<> launch(const cuda::Stream& stream, std::size_t first, std::size_t end) const;
  Result<> launch(const cuda::Stream& stream, const Launch& next) const;

  cuda::Buffer scratch_, zeros_;
  cuda::TileRunner copies_;
  cuda::MatrixRunner amaxes_, quantise_, dequantise_;
  cuda::MaximumRunner maxima_;
  std::vector<bool> resident_;  ///< by step.
  std::vector<Launch> launches_;
  std::vector<std::size_t> first_launch_;  ///< by step; those before the first are the residents'.
};

}  // namespace reshard::device
