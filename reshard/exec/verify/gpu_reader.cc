// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/verify/gpu_reader.h"

#include <thread>

namespace reshard::verify {

Result<GpuReader> GpuReader::make(const std::shared_ptr<const cuda::Device>& device,
                                  cuda::FingerprintTable table) {
  table.end();
  auto runner = RESHARD_TRY(cuda::FingerprintRunner::make(device, table));
  return GpuReader(device, std::move(runner), RESHARD_TRY(cuda::Event::make(device)),
                   table.bytes());
}

Result<std::span<const Fingerprint>> GpuReader::read(CUstream_st* stream,
                                                     ProgressMeter& meter) const {
  const auto borrowed = cuda::Stream::borrow(device_, stream);
  if (auto done = wait(borrowed, meter); !done) {
    (void)borrowed.synchronize();
    return tl::unexpected(std::move(done).error());
  }
  return runner_.sums();
}

Result<> GpuReader::wait(const cuda::Stream& stream, ProgressMeter& meter) const {
  RESHARD_TRY(runner_.launch(stream));
  RESHARD_TRY(done_.record(stream));
  while (!RESHARD_TRY(done_.is_done())) {
    if (!meter.add(0, 0)) return meter.finish();
    std::this_thread::yield();
  }
  meter.add(0, bytes_);
  return meter.finish();
}

}  // namespace reshard::verify
