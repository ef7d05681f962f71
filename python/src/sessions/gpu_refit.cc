// SPDX-License-Identifier: Apache-2.0
#include "python/src/sessions/gpu_refit.h"

#include <fmt/format.h>

#include "reshard/base/stopwatch.h"

namespace reshard::python {
namespace {

SessionSide side_of(const TensorBuffers& buffers) {
  const LayoutSide& side = buffers.layout()->side;
  return {.layout = side.quantised == nullptr ? side.values : nullptr,
          .quantised = side.quantised,
          .buffers = &buffers.memory()};
}

void check_places(const TensorBuffers& source, const TensorBuffers& target) {
  if (source.place() == target.place()) return;
  raise(
      Code::unsupported,
      fmt::format("the source is on {}, the target on {}; a refit in one process needs both on one "
                  "GPU, or both on the host; for this make Sessions on reshard.local(n)",
                  source.place(), target.place()));
}

}  // namespace

GpuRefit::GpuRefit(const Plan& plan, const TensorBuffers& source, const TensorBuffers& target)
    : source_(source), target_(target) {
  check_places(source, target);
  if (plan.pair().quantises() && !plan.only().empty())
    raise(Code::unsupported, "a plan that quantises moves all tensors on a GPU; leave `only` away");
  const SessionSide from = side_of(source), to = side_of(target);
  refit_.emplace(without_gil([&] {
    if (!plan.pair().quantises())
      return unwrap(
          DeviceRefit::prepare(plan.planner(), source.memory(), target.memory(), source.device()));
    return unwrap(DeviceRefit::prepare(from, to, source.device(), {.ignore = plan.pair().ignore}));
  }));
}

RefitReport GpuRefit::launch() {
  const Stopwatch clock;
  const auto& device = target_.device();
  CUstream_st *const before = source_.memory().stream(), *const stream = target_.memory().stream();
  order_.order(device, before, stream);
  unwrap(refit_->launch(cuda::Stream::borrow(device, stream)));
  order_.order(device, stream, before);
  RefitReport report;
  report.bytes = refit_->bytes();
  report.copies = refit_->copies();
  report.seconds = clock.seconds();
  return report;
}

}  // namespace reshard::python
