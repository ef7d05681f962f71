// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "reshard/cuda/fingerprints/fingerprint_runner.h"
#include "reshard/exec/progress_meter.h"

namespace reshard::verify {

/// Fingerprints what ranks hold in the memory of a GPU, there: the sums alone come to the host. For
/// one thread.
class GpuReader {
 public:
  /// Blocks until the table is on the GPU. Errors: those of FingerprintRunner::make().
  static Result<GpuReader> make(const std::shared_ptr<const cuda::Device>& device,
                                cuda::FingerprintTable table);

  /// The table's sums, of what the memory holds after the work that `stream` (of this GPU) has.
  /// Blocks until they are there. Allocates nothing. Owned by this object, and valid until the next
  /// call. When this returns, the GPU reads the memory no more, also after an error. Errors: the
  /// driver's; those of the meter.
  Result<std::span<const Fingerprint>> read(CUstream_st* stream, ProgressMeter& meter) const;

 private:
  GpuReader(std::shared_ptr<const cuda::Device> device, cuda::FingerprintRunner runner,
            cuda::Event done, Index bytes)
      : device_(std::move(device)),
        runner_(std::move(runner)),
        done_(std::move(done)),
        bytes_(bytes) {}
  Result<> wait(const cuda::Stream& stream, ProgressMeter& meter) const;

  std::shared_ptr<const cuda::Device> device_;
  cuda::FingerprintRunner runner_;
  cuda::Event done_;
  Index bytes_ = 0;
};

}  // namespace reshard::verify
