// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/run_program.h"

#include <fmt/format.h>

#include "reshard/exec/host/program_executor.h"

namespace reshard {

Result<> run_program(const std::shared_ptr<const Program>& program, const ProgramGroup& group,
                     const MemoryOf& memory, Deadline deadline, ConversionVerifier* observer) {
  HostBuffer& staging = group.staging;
  if (staging.size() < program->staging_bytes) {
    staging = {};
    staging = RESHARD_TRY(HostBuffer::allocate(program->staging_bytes));
  }
  const auto place = [&](const ProgramBuffer& buffer) -> Result<host::BufferPlace> {
    std::byte* const at = memory(buffer);
    if (at != nullptr || buffer.bytes == 0) return host::BufferPlace{at, nullptr, 0};
    return fail(Code::invalid_argument, fmt::format("no memory for local tensor {} of rank {}",
                                                    buffer.slot.value(), buffer.rank.value()));
  };
  auto executor = RESHARD_TRY(host::ProgramExecutor::make(
      program, {group.transport, &group.control, &group.pool, staging.bytes(), nullptr}, place));
  const Progress silent;
  ProgressMeter meter("program", program->bytes(), silent, deadline, &group.control);
  return executor->run(deadline, meter, observer);
}

}  // namespace reshard
