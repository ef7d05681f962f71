// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/device_copy.h"

#include <algorithm>
#include <limits>

#include "reshard/cuda/memory.h"

namespace reshard {

Result<double> plain_copy_seconds(const cuda::Stream& stream, Index bytes) {
  constexpr Index kMax = Index{2} << 30;
  constexpr int kTimes = 5;
  if (bytes == 0) return 0.0;
  const Index copied = std::min(bytes, kMax);
  const auto from = cuda::Buffer::on_device(stream.shared_device(), copied);
  const auto to = cuda::Buffer::on_device(stream.shared_device(), copied);
  if (!from || !to) return 0.0;
  RESHARD_TRY(stream.fill(from->data(), std::byte{1}, copied));
  const auto begin =
      RESHARD_TRY(cuda::Event::make(stream.shared_device(), cuda::Event::Timing::on));
  const auto end = RESHARD_TRY(cuda::Event::make(stream.shared_device(), cuda::Event::Timing::on));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimes; ++i) {
    RESHARD_TRY(begin.record(stream));
    RESHARD_TRY(stream.copy(to->data(), from->data(), copied));
    RESHARD_TRY(end.record(stream));
    RESHARD_TRY(stream.synchronize());
    best = std::min(best, RESHARD_TRY(cuda::Event::seconds(begin, end)));
  }
  return best * (static_cast<double>(bytes) / static_cast<double>(copied));
}

}  // namespace reshard
