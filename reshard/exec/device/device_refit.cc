// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/device_refit.h"

#include <fmt/format.h>

#include "reshard/exec/device/program_tiles.h"
#include "reshard/program/compile.h"

namespace reshard {
namespace {

/// Kernels that use memory which the GPU cannot reach would end the work of the whole process.
Result<> expect_on(const cuda::Device& device, const std::byte* at, const char* side,
                   const ModelLayout& layout, const ProgramBuffer& buffer) {
  const cuda::MemoryKind kind = RESHARD_TRY(cuda::memory_kind(device, at));
  if (kind == cuda::MemoryKind{true, device.ordinal()}) return {};
  return fail(Code::invalid_argument,
              fmt::format("{} buffer of local tensor '{}' on rank {} is in {}, not on GPU {}", side,
                          layout.slot(buffer.slot).name, buffer.rank.value(),
                          kind.on_device ? fmt::format("the memory of GPU {}", kind.ordinal)
                                         : "host memory",
                          device.ordinal()));
}

}  // namespace

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
    RESHARD_TRY(expect_on(*device, at, side, layout, buffer));
    return at;
  };
  const cuda::TileTable table = RESHARD_TRY(device::tiles_of(program, address));
  auto runner = RESHARD_TRY(cuda::TileRunner::make(std::move(device), table, options.most_blocks));
  return DeviceRefit(std::move(runner), program.bytes(), program.copies);
}

}  // namespace reshard
