// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/launch_program.h"

#include "reshard/exec/device/program_launches.h"
#include "reshard/exec/device/rank_memory.h"
#include "reshard/memory/cache_line.h"

namespace reshard {

using device::ProgramLaunches;
using BufferKind = ProgramBuffer::Kind;

namespace {

Result<std::byte*> address_of(const ProgramBuffer& buffer, const LaunchMemory& memory,
                              const cuda::Device& gpu) {
  if (buffer.kind == BufferKind::staging) return memory.shared->data();
  const bool is_source = buffer.kind == BufferKind::source;
  const char* const side = is_source ? "source" : "target";
  const ModelLayout& layout = is_source ? *memory.source_layout : *memory.target_layout;
  const RankBuffers* const buffers = is_source ? memory.source : memory.target;
  std::byte* const at = buffers == nullptr ? nullptr : buffers->at(buffer.rank, buffer.slot);
  if (at == nullptr) return tl::unexpected(missing_memory(side, layout, buffer.rank, buffer.slot));
  RESHARD_TRY(device::expect_on(gpu, at, side, layout, buffer.rank, buffer.slot));
  return at;
}

}  // namespace

Index LaunchedProgram::shared_bytes(const Program& program) {
  return whole_lines(program.staging_bytes) + ProgramLaunches::scratch_bytes_of(program);
}

Result<LaunchedProgram> LaunchedProgram::make(const Program& program, const LaunchMemory& memory,
                                              const std::shared_ptr<const cuda::Device>& device,
                                              int most_blocks) {
  if (!program.messages.empty())
    return fail(Code::unsupported, "messages in a program of ranks on one GPU");
  const auto addresses = RESHARD_TRY(device::addresses_of(
      program, [&](const ProgramBuffer& buffer) { return address_of(buffer, memory, *device); }));
  std::byte* const scratch = memory.shared->data() == nullptr
                                 ? nullptr
                                 : memory.shared->data() + whole_lines(program.staging_bytes);
  return LaunchedProgram(std::make_unique<ProgramLaunches>(
      RESHARD_TRY(ProgramLaunches::make(program, addresses, device, {most_blocks, scratch}))));
}

LaunchedProgram::LaunchedProgram(std::unique_ptr<ProgramLaunches> launches)
    : launches_(std::move(launches)) {}
LaunchedProgram::LaunchedProgram(LaunchedProgram&&) noexcept = default;
LaunchedProgram& LaunchedProgram::operator=(LaunchedProgram&&) noexcept = default;
LaunchedProgram::~LaunchedProgram() = default;

Result<> LaunchedProgram::launch(const cuda::Stream& stream) const {
  return launches_->launch_residents(stream);
}

std::size_t LaunchedProgram::num_launches() const { return launches_->num_resident_launches(); }

}  // namespace reshard
