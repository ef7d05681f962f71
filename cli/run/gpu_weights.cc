// SPDX-License-Identifier: Apache-2.0
#include "cli/run/gpu_weights.h"

namespace reshard::cli {
namespace {

Result<std::optional<DeviceTensors>> copy_of(const std::optional<RankBuffers>& host,
                                             const cuda::Stream& stream) {
  if (!host) return std::optional<DeviceTensors>();
  auto out = RESHARD_TRY(
      DeviceTensors::allocate(host->shared_layout(), host->ranks(), stream.shared_device()));
  RESHARD_TRY(out.copy_from(*host, stream));
  RESHARD_TRY(stream.synchronize());
  return std::optional(std::move(out));
}

}  // namespace

Result<GpuWeights> GpuWeights::copy_of(const RankWeights& host,
                                       std::shared_ptr<const cuda::Device> device) {
  const cuda::Stream stream = RESHARD_TRY(cuda::Stream::make(device));
  GpuWeights out{std::move(device), {}, {}, {}};
  out.source = RESHARD_TRY(cli::copy_of(host.source, stream));
  out.target = RESHARD_TRY(cli::copy_of(host.target, stream));
  out.back = RESHARD_TRY(cli::copy_of(host.back, stream));
  return out;
}

Result<> GpuWeights::read_back(const RankWeights& host) const {
  const cuda::Stream stream = RESHARD_TRY(cuda::Stream::make(device));
  if (target) RESHARD_TRY(target->copy_to(*host.target, stream));
  if (back) RESHARD_TRY(back->copy_to(*host.back, stream));
  return stream.synchronize();
}

}  // namespace reshard::cli
