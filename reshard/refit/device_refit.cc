// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/device_refit.h"

#include <algorithm>

#include "reshard/exec/device/launch_program.h"
#include "reshard/program/compile.h"
#include "reshard/refit/conversion/plan_moves.h"
#include "reshard/refit/conversion/values_view.h"

namespace reshard {

using conversion::MoveSide;
using conversion::RoutePlan;
using conversion::StagingTensors;

struct DeviceRefit::State {
  /// The programs of one move, and the tensors that they write for the next one.
  struct Move {
    std::vector<LaunchedProgram> programs;
    StagingTensors* clears = nullptr;  ///< before the programs; null: nothing.
  };

  Result<> plan(const DeviceRefitOptions& options);
  Result<> place_between();
  Result<> view_values();
  const RankBuffers* memory_of(const MoveSide& side, bool is_target) const;
  Result<std::vector<Program>> compile(const RoutePlan& move) const;
  Result<> bind(const RoutePlan& move, const std::vector<Program>& programs,
                const DeviceRefitOptions& options);
  /// Adds a move; `between_tensors` are those that it writes for the next one, or null.
  Result<> add(const std::vector<Program>& programs, const LaunchMemory& memory,
               StagingTensors* between_tensors, const DeviceRefitOptions& options);
  Result<> make_programs(const DeviceRefitOptions& options);

  std::shared_ptr<const cuda::Device> device;
  SessionSide source, target;
  std::unique_ptr<RankBuffers> source_values, target_values;
  conversion::MovePlans plans;
  cuda::Buffer between, shared;
  std::vector<Move> moves;
  std::size_t num_launches = 0;
  Index bytes = 0, copies = 0;
};

namespace {

std::vector<Rank> ranks_of(const RankBuffers* buffers) {
  return buffers == nullptr ? std::vector<Rank>() : buffers->ranks();
}

}  // namespace

Result<> DeviceRefit::State::plan(const DeviceRefitOptions& options) {
  for (const SessionSide* side : {&source, &target})
    if (side->stored() == nullptr)
      return fail(Code::invalid_argument, side == &source ? "no layout of the source was given"
                                                          : "no layout of the target was given");
  plans = RESHARD_TRY(conversion::plan_moves(
      source, target,
      {.ignore = options.ignore, .only = options.only, .staging_bytes = options.between_bytes}));
  RESHARD_TRY(view_values());
  return place_between();
}

Result<> DeviceRefit::State::view_values() {
  for (const auto& [side, view] : {std::pair(&source, &source_values), {&target, &target_values}})
    if (side->quantised != nullptr && side->buffers != nullptr)
      *view = RESHARD_TRY(conversion::values_view(*side->quantised, *side->buffers));
  return {};
}

/// All whole matrices between two moves use the same memory.
Result<> DeviceRefit::State::place_between() {
  const std::vector<Rank> ranks = ranks_of(target.buffers);
  Index most = 0;
  const auto bytes_of = [&](const StagingTensors& tensors) {
    Index all = 0;
    for (const Rank r : ranks) all += tensors.bytes(r);
    return all;
  };
  for (const RoutePlan& move : plans.moves)
    if (move.into.between != nullptr) most = std::max(most, bytes_of(*move.into.between));
  between = RESHARD_TRY(cuda::Buffer::on_device(device, most));
  for (const RoutePlan& move : plans.moves)
    if (move.into.between != nullptr)
      RESHARD_TRY(move.into.between->place(ranks, between.data(), device));
  return {};
}

const RankBuffers* DeviceRefit::State::memory_of(const MoveSide& side, bool is_target) const {
  if (side.between != nullptr) return side.between->buffers();
  const auto& values = is_target ? target_values : source_values;
  if (side.values && values != nullptr) return values.get();
  return (is_target ? target : source).buffers;
}

/// One program if bytes move from memory to memory; otherwise one for each rank.
Result<std::vector<Program>> DeviceRefit::State::compile(const RoutePlan& move) const {
  std::vector<Program> out;
  const std::vector<Rank> destinations = ranks_of(target.buffers);
  if (!move.from.converts() && !move.into.converts()) {
    out.push_back(RESHARD_TRY(compile_in_process(move.planner, destinations)));
    return out;
  }
  CompileOptions options;
  options.before = move.from.conversion;
  options.after = move.into.conversion;
  options.unit_bytes = plans.unit_bytes;
  options.staging_bytes = plans.message_bytes;
  options.world = move.planner.ranks().members().back().value() + 1;
  const GroupCompiler group(move.planner, [](Rank, Rank) { return PairPath::mapped; }, options);
  for (const Rank r : destinations)
    if (r.value() < options.world) out.push_back(RESHARD_TRY(group.compile(r)));
  return out;
}

Result<> DeviceRefit::State::bind(const RoutePlan& move, const std::vector<Program>& programs,
                                  const DeviceRefitOptions& options) {
  const auto& from_layout =
      reshard::memory_of(move.from.conversion, false, move.planner.shared_source());
  const auto& into_layout =
      reshard::memory_of(move.into.conversion, true, move.planner.shared_target());
  const LaunchMemory memory{from_layout.get(), into_layout.get(), memory_of(move.from, false),
                            memory_of(move.into, true), &shared};
  return add(programs, memory, move.into.between.get(), options);
}

Result<> DeviceRefit::State::add(const std::vector<Program>& programs, const LaunchMemory& memory,
                                 StagingTensors* between_tensors,
                                 const DeviceRefitOptions& options) {
  Move out;
  for (const Program& program : programs) {
    out.programs.push_back(
        RESHARD_TRY(LaunchedProgram::make(program, memory, device, options.most_blocks)));
    num_launches += out.programs.back().num_launches();
    bytes += between_tensors == nullptr ? program.delivered() : 0;
    copies += program.copies;
  }
  out.clears = between_tensors;
  moves.push_back(std::move(out));
  return {};
}

Result<> DeviceRefit::State::make_programs(const DeviceRefitOptions& options) {
  std::vector<std::vector<Program>> programs;
  Index bytes_shared = 0;
  for (const RoutePlan& move : plans.moves) {
    programs.push_back(RESHARD_TRY(compile(move)));
    for (const Program& program : programs.back())
      bytes_shared = std::max(bytes_shared, LaunchedProgram::shared_bytes(program));
  }
  // Programs follow each other in a stream, so all use the same staging and scratch memory.
  shared = RESHARD_TRY(cuda::Buffer::on_device(device, bytes_shared));
  for (std::size_t i = 0; i < programs.size(); ++i)
    RESHARD_TRY(bind(plans.moves[i], programs[i], options));
  return {};
}

DeviceRefit::DeviceRefit(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceRefit::DeviceRefit(DeviceRefit&&) noexcept = default;
DeviceRefit& DeviceRefit::operator=(DeviceRefit&&) noexcept = default;
DeviceRefit::~DeviceRefit() = default;

Result<DeviceRefit> DeviceRefit::prepare(const SessionSide& source, const SessionSide& target,
                                         std::shared_ptr<const cuda::Device> device,
                                         const DeviceRefitOptions& options) {
  RESHARD_TRY(check_memory({.source = source.buffers, .target = target.buffers}));
  auto state = std::make_unique<State>();
  state->device = std::move(device);
  state->source = source;
  state->target = target;
  RESHARD_TRY(state->plan(options));
  RESHARD_TRY(state->make_programs(options));
  return DeviceRefit(std::move(state));
}

Result<DeviceRefit> DeviceRefit::prepare(const Planner& planner, const RankBuffers& source,
                                         const RankBuffers& target,
                                         std::shared_ptr<const cuda::Device> device,
                                         const DeviceRefitOptions& options) {
  RESHARD_TRY(check_memory({.source = &source, .target = &target}));
  auto state = std::make_unique<State>();
  state->device = std::move(device);
  std::vector<Program> programs;
  programs.push_back(RESHARD_TRY(compile_in_process(planner, target.ranks())));
  state->shared = RESHARD_TRY(
      cuda::Buffer::on_device(state->device, LaunchedProgram::shared_bytes(programs[0])));
  const LaunchMemory memory{&planner.source(), &planner.target(), &source, &target, &state->shared};
  RESHARD_TRY(state->add(programs, memory, nullptr, options));
  return DeviceRefit(std::move(state));
}

Result<> DeviceRefit::launch(const cuda::Stream& stream) const {
  for (const State::Move& move : state_->moves) {
    if (move.clears != nullptr) RESHARD_TRY(move.clears->clear(stream));
    for (const LaunchedProgram& program : move.programs) RESHARD_TRY(program.launch(stream));
  }
  return {};
}

std::size_t DeviceRefit::num_launches() const { return state_->num_launches; }
Index DeviceRefit::bytes() const { return state_->bytes; }
Index DeviceRefit::copies() const { return state_->copies; }

}  // namespace reshard
