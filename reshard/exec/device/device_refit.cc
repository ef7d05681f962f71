// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/device_refit.h"

#include "reshard/exec/device/rank_memory.h"
#include "reshard/program/compile.h"

namespace reshard {
Result<DeviceRefit> DeviceRefit::prepare(const Planner& planner, const RankBuffers& source,
                                         const RankBuffers& target,
                                         std::shared_ptr<const cuda::Device> device,
                                         DeviceRefitOptions options) {
  const Program program = RESHARD_TRY(compile_in_process(planner, target.ranks()));
  const auto address = [&](const ProgramBuffer& buffer) -> Result<std::byte*> {
    const bool is_source = buffer.kind == ProgramBuffer::Kind::source;
    const char* const side = is_source ? "source" : "target";
    const ModelLayout& layout = is_source ? planner.source() : planner.target();
    std::byte* const at = (is_source ? source : target).at(buffer.rank, buffer.slot);
    if (at == nullptr)
      return tl::unexpected(missing_memory(side, layout, buffer.rank, buffer.slot));
    RESHARD_TRY(device::expect_on(*device, at, side, layout, buffer.rank, buffer.slot));
    return at;
  };
  const std::vector<std::byte*> addresses = RESHARD_TRY(device::addresses_of(program, address));
  auto launches =
      RESHARD_TRY(device::ProgramLaunches::make(program, addresses, device, options.most_blocks));
  return DeviceRefit(std::move(launches), program.bytes(), program.copies);
}

}  // namespace reshard
