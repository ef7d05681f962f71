// SPDX-License-Identifier: Apache-2.0
#include "cli/run/device_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/command_spec.h"
#include "cli/progress_bar.h"
#include "reshard/base/stopwatch.h"
#include "reshard/convert/reference/refit_check.h"
#include "reshard/cuda/driver.h"
#include "reshard/exec/device/device_copy.h"
#include "reshard/exec/device/device_tensors.h"
#include "reshard/refit/device_refit.h"

namespace reshard::cli {

Result<int> parse_gpu(const std::string& text) {
  constexpr int kMax = 1023;
  if (text == "cuda") return RunArguments::kAnyGpu;
  if (!text.starts_with("cuda:"))
    return fail(Code::invalid_argument, fmt::format("'{}' must be cpu, cuda or cuda:N", text));
  return OptionList::parse_number(text.substr(5), 0, kMax);
}

Result<std::shared_ptr<const cuda::Device>> open_gpu(int ordinal, int rank) {
  const cuda::Driver* driver = RESHARD_TRY(cuda::load_driver());
  if (ordinal == RunArguments::kAnyGpu) {
    int count = 0;
    RESHARD_TRY(cuda::check(*driver, driver->cuDeviceGetCount(&count), "cuDeviceGetCount"));
    ordinal = rank % count;
  }
  return cuda::Device::open(*driver, ordinal);
}

namespace {

/// Keeps the least seconds of a comparison.
Result<> check_on_device(const RankBuffers& source, const RankBuffers& target,
                         const std::set<std::string>& only, double& least) {
  const Stopwatch clock;
  RESHARD_TRY(check_refit(source, target, std::nullopt, 1, {}, only));
  const double seconds = clock.seconds();
  least = least > 0 ? std::min(least, seconds) : seconds;
  return {};
}

}  // namespace

Result<RefitRuns> run_on_device(const SessionSide& source, const SessionSide& target,
                                const DeviceRunOptions& options,
                                const std::shared_ptr<const cuda::Device>& device) {
  const auto allocate = [&](const SessionSide& side) {
    return DeviceTensors::allocate(side.stored(), side.buffers->ranks(), device);
  };
  const cuda::Stream stream = RESHARD_TRY(cuda::Stream::make(device));
  const DeviceTensors from = RESHARD_TRY(allocate(source)), to = RESHARD_TRY(allocate(target));
  RESHARD_TRY(from.copy_from(*source.buffers, stream));
  RESHARD_TRY(to.copy_from(*target.buffers, stream));  // Padding, which no refit writes.
  RESHARD_TRY(stream.synchronize());
  SessionSide gpu_source = source, gpu_target = target;
  gpu_source.buffers = &from.buffers();
  gpu_target.buffers = &to.buffers();
  const DeviceRefit refit = RESHARD_TRY(DeviceRefit::prepare(
      gpu_source, gpu_target, device, {.ignore = options.ignore, .only = options.only}));
  const auto begin = RESHARD_TRY(cuda::Event::make(device, cuda::Event::Timing::on));
  const auto end = RESHARD_TRY(cuda::Event::make(device, cuda::Event::Timing::on));
  RefitRuns runs;
  runs.device = device->name();
  runs.bytes = refit.bytes();
  runs.copies = refit.copies();
  ProgressBar bar;
  const Progress progress = bar.progress();
  for (Index i = 0; i < options.repeat; ++i) {
    RESHARD_TRY(begin.record(stream));
    RESHARD_TRY(refit.launch(stream));
    RESHARD_TRY(end.record(stream));
    RESHARD_TRY(stream.synchronize());
    runs.seconds.push_back(RESHARD_TRY(cuda::Event::seconds(begin, end)));
    if (options.check_fingerprints)
      RESHARD_TRY(check_on_device(from.buffers(), to.buffers(), options.only, runs.check_seconds));
    if (!progress("refit", i + 1, options.repeat)) return fail(Code::aborted, "refit: cancelled");
  }
  RESHARD_TRY(to.copy_to(*target.buffers, stream));
  RESHARD_TRY(stream.synchronize());
  runs.plain_seconds = RESHARD_TRY(plain_copy_seconds(stream, runs.bytes));
  return runs;
}

}  // namespace reshard::cli
