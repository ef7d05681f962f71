// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/rank_refit.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "reshard/base/hash.h"
#include "reshard/base/log/log.h"
#include "reshard/base/stopwatch.h"
#include "reshard/exec/agreement.h"
#include "reshard/exec/device/device_executor.h"
#include "reshard/exec/device/rank_memory.h"
#include "reshard/exec/direct/pair_paths.h"
#include "reshard/exec/host/program_executor.h"
#include "reshard/exec/prepare_arguments.h"
#include "reshard/memory/host_buffer.h"

namespace reshard {

using direct::PairPaths;
using host::BufferPlace;
using host::ProgramExecutor;

struct RankRefit::State {
  State(const PrepareArguments& work, PairPaths how);
  /// Compiles this rank's program and binds it to its memory. Collective if the transport needs
  /// rounds.
  Result<> prepare(const PrepareArguments& work);
  Result<> renew_memory(Deadline deadline);

  Result<Program> compile(const PrepareArguments& work) const;
  Result<> allocate_staging(const PrepareArguments& work, Index bytes);
  Result<> make_executor(const PrepareArguments& work);
  Result<BufferPlace> place(const PrepareArguments& work, const ProgramBuffer& buffer) const;
  Result<> record(const PrepareArguments& work) const;
  Result<> share_memory(const PrepareArguments& work) const;
  bool uses_gpu() const { return rank_memory.gpu() != nullptr; }
  bool gpu_messages() const { return transport.capabilities().gpu_messages; }

  const Planner& planner;
  const RankBuffers *source, *target;
  Transport& transport;
  ControlPlane& control;
  RankRefitOptions asked;  ///< those that ranks must agree on are the agreed ones.
  std::optional<RefitConversions> own_conversions;
  RankRefitHooks hooks;  ///< with the conversions above.
  std::optional<WorkerPool> own_pool;
  WorkerPool* pool;
  PairPaths ways;
  HostBuffer own_staging;
  cuda::Buffer gpu_staging;
  std::span<std::byte> staging;
  device::RankMemory rank_memory;
  std::shared_ptr<const Program> program;
  std::unique_ptr<Executor> executor;
  Index bytes = 0;    ///< of progress.
  RankReport counts;  ///< of each run.
};

namespace {

/// Bytes of transfers, in the form in which values travel.
Index wire_bytes(const Planner& planner, const std::vector<Transfer>& transfers) {
  Index bytes = 0;
  for (const Transfer& t : transfers) bytes += t.box.volume() * planner.element_bits(t.tensor) / 8;
  return bytes;
}

/// The name of a local tensor.
std::string name_of(const PrepareArguments& work, const ProgramBuffer& buffer) {
  const bool is_source = buffer.kind == ProgramBuffer::Kind::source;
  return (is_source ? work.source_layout() : work.target_layout()).slot(buffer.slot).name;
}

}  // namespace

RankRefit::State::State(const PrepareArguments& work, PairPaths how)
    : planner(work.planner),
      source(work.source),
      target(work.target),
      transport(work.transport),
      control(work.control),
      asked(work.options),
      hooks(work.hooks),
      pool(work.hooks.pool),
      ways(std::move(how)) {
  if (hooks.conversions != nullptr)
    hooks.conversions = &own_conversions.emplace(*hooks.conversions);
  if (pool == nullptr) pool = &own_pool.emplace(work.options.threads);
  counts.sent = wire_bytes(work.planner, work.part.sends);
  counts.received = wire_bytes(work.planner, work.part.recvs);
  counts.copied = wire_bytes(work.planner, work.part.locals);
}

Result<Program> RankRefit::State::compile(const PrepareArguments& work) const {
  CompileOptions options;
  options.staging_bytes = work.options.staging_bytes;
  options.in_place_bytes = work.options.in_place_bytes;
  options.stages_all = uses_gpu() && !gpu_messages();
  options.world = transport.size();
  options.reads = ways.reads();
  options.gets = ways.gets();
  options.path_from = [this](Rank r) { return ways.from(r); };
  options.path_to = [this](Rank r) { return ways.to(r); };
  if (const RefitConversions* conversions = work.hooks.conversions) {
    options.before = conversions->before;
    options.after = conversions->after;
    options.unit_bytes = conversions->unit_bytes;
  }
  // NCCL's transport stages host memory in buffers of this size (nccl::GroupLimits::host_bytes).
  if (!uses_gpu()) options.round_bytes = Index{16} << 20;
  const auto compile_with = [&](int round_bits) {
    options.round_bits = round_bits;
    return compile_rank(work.planner, work.part, options);
  };
  if (!transport.capabilities().rounds || !ways.messages()) return compile_with(-1);
  return compile_in_rounds(compile_with, control, work.deadline);
}

/// The memory of a local tensor of this rank, or of a source of a peer.
Result<BufferPlace> RankRefit::State::place(const PrepareArguments& work,
                                            const ProgramBuffer& buffer) const {
  const bool is_source = buffer.kind == ProgramBuffer::Kind::source;
  if (is_source && buffer.rank != work.me()) return ways.place(work, buffer.rank, buffer.slot);
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

Result<> RankRefit::State::allocate_staging(const PrepareArguments& work, Index size) {
  const auto wanted = static_cast<std::size_t>(size);
  staging = work.hooks.staging.first(std::min(wanted, work.hooks.staging.size()));
  if (staging.size() == wanted) return {};
  if (uses_gpu() && gpu_messages()) {
    gpu_staging = RESHARD_TRY(cuda::Buffer::on_device(rank_memory.gpu(), size));
    staging = {gpu_staging.data(), wanted};
    return {};
  }
  // Peers that can map the staging need no system call to read it.
  HostBuffer::Options options{.prefault_threads = 1};
  options.shared = transport.capabilities().direct;
  own_staging = RESHARD_TRY(HostBuffer::allocate(size, options));
  staging = own_staging.bytes();
  return rank_memory.pin(staging);
}

Result<> RankRefit::State::make_executor(const PrepareArguments& work) {
  const auto at = [&](const ProgramBuffer& buffer) { return place(work, buffer); };
  if (rank_memory.gpu() == nullptr) {
    executor = RESHARD_TRY(
        ProgramExecutor::make(program, {&transport, &control, pool, staging, nullptr}, at));
    return record(work);
  }
  const auto address = [&](const ProgramBuffer& buffer) -> Result<std::byte*> {
    return RESHARD_TRY(at(buffer)).address;
  };
  executor = RESHARD_TRY(
      device::DeviceExecutor::make(program,
                                   {&transport, &control, pool, rank_memory.gpu(), work.source,
                                    work.target, staging, work.options.most_gpu_blocks},
                                   address));
  return record(work);
}

Result<> RankRefit::State::record(const PrepareArguments& work) const {
  if (work.hooks.trace != nullptr)
    executor->record(*work.hooks.trace,
                     [&](const ProgramBuffer& buffer) { return name_of(work, buffer); });
  return {};
}

/// Lets peers write large messages into place, without an intermediate copy.
Result<> RankRefit::State::share_memory(const PrepareArguments& work) const {
  if (!transport.capabilities().registers || !ways.messages()) return {};
  std::vector<std::span<std::byte>> memory;
  // Engines and trainers may unmap GPU memory between refits, which no registration survives.
  const bool stays = !uses_gpu();
  if (stays && !work.part.recvs.empty()) memory = work.target->memory(work.me());
  const auto from_source = [](const Transfer& t) { return t.relay.hop == 0; };
  if (stays && std::ranges::any_of(work.part.sends, from_source))
    for (const auto span : work.source->memory(work.me())) memory.push_back(span);
  if (!staging.empty()) memory.push_back(staging);
  for (const auto span : memory) {
    const auto key = transport.share(span);
    // Memory that cannot be registered, such as a mapped file, can still be sent from.
    if (!key && key.error().code != Code::unsupported) return tl::unexpected(key.error());
  }
  return {};
}

Result<> RankRefit::State::prepare(const PrepareArguments& work) {
  RESHARD_TRY(check_memory({.source = source, .target = target, .only = work.me()}));
  rank_memory = RESHARD_TRY(device::RankMemory::of(work));
  program = std::make_shared<const Program>(RESHARD_TRY(compile(work)));
  RESHARD_TRY(allocate_staging(work, program->staging_bytes));
  bytes = program->bytes();
  counts.bytes = program->delivered();
  counts.copies = program->copies;
  counts.messages = static_cast<Index>(program->messages.size());
  RESHARD_TRY(make_executor(work));
  return share_memory(work);
}

Result<> RankRefit::State::renew_memory(Deadline deadline) {
  const RankPlan part = planner.rank_plan(transport.rank());
  const PrepareArguments work{planner, part,  source, target,  transport,
                              control, asked, hooks,  deadline};
  if (!RESHARD_TRY(ways.renew(work))) return {};
  // The tables of its launches have the old addresses.
  return make_executor(work);
}

RankRefit::RankRefit(std::unique_ptr<State> state) : state_(std::move(state)) {}
RankRefit::RankRefit(RankRefit&&) noexcept = default;
RankRefit& RankRefit::operator=(RankRefit&&) noexcept = default;
RankRefit::~RankRefit() = default;

Result<RankRefit> RankRefit::prepare(const Planner& planner, const RankBuffers* source,
                                     const RankBuffers* target, Transport& transport,
                                     ControlPlane& control, const RankRefitOptions& options) {
  return prepare(planner, source, target, transport, control, options, RankRefitHooks{});
}

Result<RankRefit> RankRefit::prepare(const Planner& planner, const RankBuffers* source,
                                     const RankBuffers* target, Transport& transport,
                                     ControlPlane& control, const RankRefitOptions& options,
                                     const RankRefitHooks& hooks) {
  const Stopwatch clock;
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(options.seconds));
  const Capabilities can = transport.capabilities();
  RankRefitOptions asked = options;
  if (asked.in_place_bytes == 0) asked.in_place_bytes = Index{can.rounds ? 1024 : 64} << 10;
  // Host code, such as most transports, must not touch the memory of a GPU.
  if (gpu_of(source, target) != nullptr && !can.gpu_messages)
    asked.in_place_bytes = device::kNeverInPlace;
  const bool reaches = can.direct || gpu_of(source, target) != nullptr;
  auto agreed = agree(planner, asked, reaches && can.message, control, deadline);
  // Every rank finds an error in the request itself; any other error only some may have.
  if (!agreed && agreed.error().code == Code::invalid_argument)
    return tl::unexpected(std::move(agreed).error());
  if (!agreed) return end_group(control, std::move(agreed).error());
  const RankPlan part = planner.rank_plan(transport.rank());
  const PrepareArguments work{planner,         part,  source,  target, transport, control,
                              agreed->options, hooks, deadline};
  auto ways = PairPaths::agree(work, agreed->direct);
  if (!ways) return end_group(control, std::move(ways).error());
  // Identical on all ranks.
  if (ways->messages() && options.path == RefitPath::direct)
    return fail(Code::unsupported, "direct path: " + ways->reason());
  auto state = std::make_unique<State>(work, *std::move(ways));
  auto prepared = state->prepare(work);
  // A rank that could not prepare has aborted the group, so no rank begins without it.
  if (prepared) prepared = control.barrier(deadline);
  if (!prepared) return end_group(control, std::move(prepared).error());
  RankRefit refit(std::move(state));
  refit.log_prepared(clock.seconds());
  return refit;
}

void RankRefit::log_prepared(double seconds) const {
  const State& s = *state_;
  log_event(LogLevel::info, "exec", s.control.rank().value(), [&] {
    return fmt::format(
        "prepared plan {} in {:.3g} s: sends {} B, receives {} B, copies {} B; path {}{}{}; "
        "staging {} B",
        hex(s.planner.digest()), seconds, s.counts.sent, s.counts.received, s.counts.copied, path(),
        reason().empty() ? "" : ", because ", reason(), staging_bytes());
  });
}

Result<RankReport> RankRefit::run(ConversionVerifier* observer) {
  const Stopwatch clock;
  State& s = *state_;
  const Deadline deadline = Deadline::after(std::chrono::duration<double>(s.asked.seconds));
  ProgressMeter meter("refit", s.bytes, s.asked.progress, deadline, &s.control);
  if (auto done = s.executor->run(deadline, meter, observer); !done) {
    auto failed = end_group(s.control, std::move(done).error());
    return tl::unexpected(std::move(failed.value()).in("refit failed and left targets undefined"));
  }
  RankReport report = s.counts;
  report.seconds = clock.seconds();
  report.wait_seconds = s.executor->first_seconds();
  report.move_seconds = s.executor->last_seconds() - report.wait_seconds;
  report.finish_seconds = report.seconds - report.wait_seconds - report.move_seconds;
  log_event(LogLevel::info, "exec", s.control.rank().value(), [&] {
    return fmt::format("refit delivered {} B in {:.3g} s, of which it waited {:.3g} s",
                       report.bytes, report.seconds, report.wait_seconds);
  });
  return report;
}

Result<> RankRefit::renew_memory() {
  State& s = *state_;
  const auto seconds = std::chrono::duration<double>(s.asked.seconds);
  auto renewed = s.renew_memory(Deadline::after(seconds));
  return renewed ? std::move(renewed) : end_group(s.control, std::move(renewed).error());
}

std::string_view RankRefit::path() const {
  if (!state_->ways.messages()) return "direct";
  return state_->ways.reads() ? "mixed" : "message";
}
const std::string& RankRefit::reason() const { return state_->ways.reason(); }
Index RankRefit::staging_bytes() const {
  return state_->program->staging_bytes + state_->executor->scratch_bytes();
}

}  // namespace reshard
