// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/host/batch_executor.h"

#include "reshard/exec/host/program_executor.h"

namespace reshard {

Result<> BatchExecutor::run(const TransferBatch& batch, std::span<const BatchMemory> memory,
                            Deadline deadline) {
  const auto program = std::make_shared<const Program>(
      RESHARD_TRY(compile_batch(transport_.rank(), transport_.size(), batch, staging_bytes_)));
  if (!pool_) pool_.emplace(threads_);
  if (staging_.size() < program->staging_bytes) {
    staging_ = {};
    staging_ = RESHARD_TRY(HostBuffer::allocate(program->staging_bytes));
  }
  const auto place = [&](const ProgramBuffer& buffer) -> Result<host::BufferPlace> {
    const BatchMemory& at = memory[buffer.slot.index()];
    const bool is_source = buffer.kind == ProgramBuffer::Kind::source;
    return host::BufferPlace{is_source ? const_cast<std::byte*>(at.src) : at.dst, nullptr, 0};
  };
  auto executor = RESHARD_TRY(host::ProgramExecutor::make(
      program, {&transport_, &control_, &*pool_, staging_.bytes(), nullptr}, place));
  const Progress silent;
  ProgressMeter meter("copy", program->bytes(), silent, deadline);
  return executor->run(deadline, meter);
}

void BatchExecutor::release() {
  pool_.reset();
  staging_ = {};
}

}  // namespace reshard
