// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/host/program_path.h"

#include <fmt/format.h>

#include <optional>

#include "reshard/exec/direct/pair_ways.h"
#include "reshard/exec/host/program_executor.h"
#include "reshard/memory/host_buffer.h"

namespace reshard::host {

using direct::PairWays;

namespace {

class ProgramPath final : public RankPath {
 public:
  ProgramPath(const RankWork& work, PairWays ways)
      : transport_(work.transport),
        control_(work.control),
        progress_(work.options.progress),
        pool_(work.hooks.pool),
        ways_(std::move(ways)) {
    if (pool_ == nullptr) pool_ = &own_pool_.emplace(work.options.threads);
  }

  std::string_view name() const override {
    if (!ways_.messages()) return "direct";
    return ways_.reads() ? "mixed" : "message";
  }
  Index staging_bytes() const override {
    const Program& program = executor_->program();
    return program.staging_bytes + program.scratch_bytes * pool_->size();
  }
  Result<> prepare(const RankWork& work);
  Result<> run(Deadline deadline, ConversionObserver* observer, RankReport& report) override;

 private:
  Result<Program> compile(const RankWork& work) const;
  Result<std::span<std::byte>> staging(const RankWork& work, Index bytes);
  Result<BufferPlace> place(const RankWork& work, const ProgramBuffer& buffer) const;
  Result<> share_memory(const RankWork& work) const;

  Transport& transport_;
  ControlPlane& control_;
  Progress progress_;
  std::optional<WorkerPool> own_pool_;
  WorkerPool* pool_;
  PairWays ways_;
  HostBuffer own_staging_;
  std::span<std::byte> staging_;
  std::unique_ptr<ProgramExecutor> executor_;
  Index bytes_ = 0, delivered_ = 0;
};

Result<Program> ProgramPath::compile(const RankWork& work) const {
  CompileOptions options;
  options.staging_bytes = work.options.staging_bytes;
  options.in_place_bytes = work.options.in_place_bytes;
  options.world = transport_.size();
  options.reads = ways_.reads();
  options.gets = ways_.gets();
  options.way_from = [this](Rank r) { return ways_.from(r); };
  options.way_to = [this](Rank r) { return ways_.to(r); };
  if (const RefitConversions* conversions = work.hooks.conversions) {
    options.before = conversions->before;
    options.after = conversions->after;
    options.unit_bytes = conversions->unit_bytes;
  }
  return compile_rank(work.planner, work.part, options);
}

/// The memory of a local tensor of this rank, or of a source of a peer.
Result<BufferPlace> ProgramPath::place(const RankWork& work, const ProgramBuffer& buffer) const {
  const bool is_source = buffer.kind == ProgramBuffer::Kind::source;
  if (is_source && buffer.rank != work.me()) return ways_.place(work, buffer.rank, buffer.slot);
  const RankBuffers* memory = is_source ? work.source : work.target;
  const ModelLayout& layout = is_source ? work.source_layout() : work.target_layout();
  if (memory == nullptr || &memory->layout() != &layout)
    return fail(Code::invalid_argument,
                fmt::format("rank {} is part of {} but passed no buffers for it", work.me().value(),
                            layout.name()));
  std::byte* const at = memory->at(work.me(), buffer.slot);
  if (at == nullptr)
    return tl::unexpected(
        missing_memory(is_source ? "source" : "target", layout, work.me(), buffer.slot));
  return BufferPlace{at, nullptr, 0};
}

Result<std::span<std::byte>> ProgramPath::staging(const RankWork& work, Index bytes) {
  const auto wanted = static_cast<std::size_t>(bytes);
  if (work.hooks.staging.size() >= wanted) return work.hooks.staging.first(wanted);
  // Peers that can map the staging need no system call to read it.
  HostBuffer::Options options{.prefault_threads = 1};
  options.shared = transport_.capabilities().direct;
  own_staging_ = RESHARD_TRY(HostBuffer::allocate(bytes, options));
  return own_staging_.bytes();
}

/// Lets peers write large messages into place, without an intermediate copy.
Result<> ProgramPath::share_memory(const RankWork& work) const {
  if (!transport_.capabilities().registers || !ways_.messages()) return {};
  std::vector<std::span<std::byte>> memory;
  if (!work.part.recvs.empty()) memory = work.target->memory(work.me());
  if (!work.part.sends.empty())
    for (const auto span : work.source->memory(work.me())) memory.push_back(span);
  if (!staging_.empty()) memory.push_back(staging_);
  for (const auto span : memory) {
    const auto key = transport_.share(span);
    // Memory that cannot be registered, such as a mapped file, can still be sent from.
    if (!key && key.error().code != Code::unsupported) return tl::unexpected(key.error());
  }
  return {};
}

Result<> ProgramPath::prepare(const RankWork& work) {
  auto program = std::make_shared<const Program>(RESHARD_TRY(compile(work)));
  staging_ = RESHARD_TRY(staging(work, program->staging_bytes));
  bytes_ = program->bytes();
  delivered_ = program->delivered();
  executor_ = RESHARD_TRY(
      ProgramExecutor::make(std::move(program), {&transport_, &control_, pool_, staging_},
                            [&](const ProgramBuffer& buffer) { return place(work, buffer); }));
  return share_memory(work);
}

Result<> ProgramPath::run(Deadline deadline, ConversionObserver* observer, RankReport& report) {
  ProgressMeter meter("refit", bytes_, progress_, deadline, &control_);
  const PhaseClock clock;
  RESHARD_TRY(executor_->run(deadline, meter, observer));
  report.wait_seconds = executor_->first_seconds();
  report.move_seconds = executor_->last_seconds() - report.wait_seconds;
  report.bytes = delivered_;
  report.copies = executor_->program().copies;
  report.messages = static_cast<Index>(executor_->program().messages.size());
  return {};
}

}  // namespace

Result<ProgramPathOutcome> make_program_path(const RankWork& work, bool reaches) {
  PairWays ways = RESHARD_TRY(PairWays::agree(work, reaches));
  std::string reason = ways.reason();
  if (ways.messages() && work.options.path == RefitPath::direct)
    return ProgramPathOutcome{nullptr, std::move(reason)};
  auto path = std::make_unique<ProgramPath>(work, std::move(ways));
  RESHARD_TRY(path->prepare(work));
  // A rank that could not prepare has aborted the group, so no rank begins without it.
  RESHARD_TRY(work.control.barrier(work.deadline));
  return ProgramPathOutcome{std::move(path), std::move(reason)};
}

}  // namespace reshard::host
