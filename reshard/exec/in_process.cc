// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/in_process.h"

#include <fmt/format.h>

#include "reshard/base/log/log.h"
#include "reshard/exec/host/program_executor.h"
#include "reshard/program/compile.h"

namespace reshard {

struct InProcessRefit::State {
  State(InProcessOptions o) : options(std::move(o)), pool(options.threads) {}
  InProcessOptions options;
  WorkerPool pool;
  std::unique_ptr<host::ProgramExecutor> executor;
};

InProcessRefit::InProcessRefit(std::unique_ptr<State> state) : state_(std::move(state)) {}
InProcessRefit::InProcessRefit(InProcessRefit&&) noexcept = default;
InProcessRefit& InProcessRefit::operator=(InProcessRefit&&) noexcept = default;
InProcessRefit::~InProcessRefit() = default;

Result<InProcessRefit> InProcessRefit::prepare(const Planner& planner, const RankBuffers& source,
                                               const RankBuffers& target,
                                               InProcessOptions options) {
  RESHARD_TRY(check_memory({.source = &source, .target = &target}));
  auto state = std::make_unique<State>(std::move(options));
  auto program =
      std::make_shared<const Program>(RESHARD_TRY(compile_in_process(planner, target.ranks())));
  const auto place = [&](const ProgramBuffer& buffer) -> Result<host::BufferPlace> {
    const bool is_source = buffer.kind == ProgramBuffer::Kind::source;
    std::byte* const at = (is_source ? source : target).at(buffer.rank, buffer.slot);
    if (at != nullptr) return host::BufferPlace{at, nullptr, 0};
    return tl::unexpected(missing_memory(is_source ? "source" : "target",
                                         is_source ? planner.source() : planner.target(),
                                         buffer.rank, buffer.slot));
  };
  state->executor =
      RESHARD_TRY(host::ProgramExecutor::make(std::move(program), {.pool = &state->pool}, place));
  return InProcessRefit(std::move(state));
}

Result<RefitReport> InProcessRefit::run() {
  State& s = *state_;
  const Program& program = s.executor->program();
  const Index bytes = program.bytes();
  ProgressMeter meter("refit", bytes, s.options.progress, s.options.deadline);
  RESHARD_TRY(s.executor->run(s.options.deadline, meter));
  const RefitReport report{s.executor->last_seconds(), bytes, program.copies};
  log_event(LogLevel::info, "exec", {}, [&] {
    return fmt::format("refit in this process delivered {} B in {:.3g} s", report.bytes,
                       report.seconds);
  });
  return report;
}

}  // namespace reshard
