// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "reshard/base/stopwatch.h"
#include "reshard/cuda/stream.h"
#include "reshard/exec/agreement.h"
#include "reshard/exec/routes/relay_places.h"
#include "reshard/refit/conversion/plan_moves.h"
#include "reshard/refit/conversion/values_view.h"
#include "reshard/refit/conversion/written_bytes.h"
#include "reshard/transport/host_identity.h"

namespace reshard::conversion {
Job::Job(const JobInput& input)
    : group_{input.transport, input.control, input.options.refit, {}, 0},
      source_(input.source),
      target_(input.target),
      pool_(input.options.refit.threads) {
  group_.options.staging_bytes = input.staging_bytes;
  group_.hooks.pool = &pool_;
  group_.hooks.trace = input.trace;
}

Result<std::unique_ptr<Job>> Job::prepare(const JobInput& input) {
  std::unique_ptr<Job> job(new Job(input));
  RESHARD_TRY(job->plan(input));
  if (auto placed = job->place(input); !placed)
    return end_group(input.control, std::move(placed).error());
  for (PlannedMove& move : job->moves_) RESHARD_TRY(move.prepare(job->group_));
  job->count_peers();
  return job;
}

/// Collective. Null: all routes are direct.
Result<std::shared_ptr<const RelayOptions>> Job::find_places(const JobInput& input) const {
  const SessionOptions& options = input.options;
  // The same on all ranks.
  if (options.routes == RouteMode::direct || options.refit.path == RefitPath::direct)
    return std::shared_ptr<const RelayOptions>();
  const bool able = input.transport.capabilities().message;
  const std::string host = options.host.empty() ? host_identity() : options.host;
  return or_end(group_,
                gather_places(able ? host : std::string(), group_.control, group_.deadline()));
}

Result<> Job::plan(const JobInput& input) {
  auto places = RESHARD_TRY(find_places(input));
  MovePlans plans = RESHARD_TRY(plan_moves(source_, target_,
                                           {.ignore = input.options.ignore,
                                            .only = input.options.only,
                                            .convert = input.options.convert,
                                            .relays = std::move(places),
                                            .staging_bytes = input.staging_bytes}));
  routes_ = std::move(plans.routes);
  group_.options.staging_bytes = plans.message_bytes;
  group_.unit_bytes = plans.unit_bytes;
  for (RoutePlan& plan : plans.moves) moves_.emplace_back(std::move(plan));
  return {};
}

/// `stored`, this rank's memory of a side, in both forms.
Result<JobMemory::Forms> Job::forms(const SessionSide& side, const RankBuffers* stored) {
  if (side.quantised == nullptr || stored == nullptr) return JobMemory::Forms{stored, stored};
  views_.push_back({stored, RESHARD_TRY(values_view(*side.quantised, *stored))});
  return JobMemory::Forms{stored, views_.back().values.get()};
}

/// Staging for messages, which all moves share.
Result<> Job::allocate_staging(Index bytes) {
  if (gpu() != nullptr && group_.transport.capabilities().gpu_messages) {
    gpu_staging_ = RESHARD_TRY(cuda::Buffer::on_device(gpu(), bytes));
    group_.hooks.staging = {gpu_staging_.data(), static_cast<std::size_t>(bytes)};
    return {};
  }
  staging_ = RESHARD_TRY(HostBuffer::allocate(bytes));
  group_.hooks.staging = staging_.bytes();
  if (gpu() != nullptr)
    pinned_staging_ = RESHARD_TRY(cuda::PinnedRange::make(gpu(), staging_.bytes()));
  return {};
}

Result<> Job::place(const JobInput& input) {
  memory_.source = RESHARD_TRY(forms(source_, source_.buffers));
  memory_.target.push_back(RESHARD_TRY(forms(target_, target_.buffers)));
  if (input.options.buffering == Buffering::doubled)
    memory_.target.push_back(RESHARD_TRY(forms(target_, target_.back)));
  if (moves_.size() * memory_.target.size() > 1) {
    CompileOptions messages;
    messages.staging_bytes = group_.options.staging_bytes;
    RESHARD_TRY(allocate_staging(message_staging(messages)));
  }
  RESHARD_TRY(place_moves());
  if (target_.stored() == nullptr || target_.buffers == nullptr) return {};
  RESHARD_TRY(find_converted());
  if (input.options.buffering == Buffering::in_place) return {};
  std::vector<bool> moves;
  for (const Route route : routes_.of) moves.push_back(route != Route::none);
  carried_ = RESHARD_TRY(CarriedTensors::of(target_, group_.me(), moves));
  return {};
}

Result<> Job::place_moves() {
  Index bytes = 0;
  for (const PlannedMove& move : moves_)
    if (const StagingTensors* between = move.between())
      bytes = std::max(bytes, between->bytes(group_.me()));
  cuda::StreamHandle stream = nullptr;
  if (gpu() != nullptr) {
    gpu_arena_ = RESHARD_TRY(cuda::Buffer::on_device(gpu(), bytes));
    // Not the default stream, for which the streams of others would wait.
    stream = between_stream_.emplace(RESHARD_TRY(cuda::Stream::make(gpu()))).handle();
  } else {
    arena_ = RESHARD_TRY(HostBuffer::allocate(bytes, {.prefault_threads = 1, .shared = true}));
  }
  for (PlannedMove& move : moves_) {
    if (StagingTensors* between = move.between())
      RESHARD_TRY(between->place({{group_.me()}}, gpu() ? gpu_arena_.data() : arena_.data(), gpu(),
                                 stream));
    RESHARD_TRY(move.place(memory_, group_));
  }
  return {};
}

/// The bytes that no comparison from memory to memory covers.
Result<> Job::find_converted() {
  for (const PlannedMove& move : moves_) {
    if (move.is_direct() || move.between() != nullptr) continue;
    const auto parts = RESHARD_TRY(written_bytes(move.plan(), group_.me(), group_.unit_bytes));
    converted_.insert(converted_.end(), parts.begin(), parts.end());
  }
  recorded_.assign(converted_.size(), 0);
  for (const JobMemory::Forms& copy : memory_.target)
    digests_.emplace_back(*copy.stored, group_.me(), converted_);
  return {};
}

void Job::count_peers() {
  std::map<Rank, PeerVolume> volumes;
  for (const PlannedMove& move : moves_) {
    const Planner& planner = move.planner();
    const RankPlan part = planner.rank_plan(group_.me());
    const auto bytes = [&](const Transfer& t) {
      return t.box.volume() * planner.element_bits(t.tensor) / 8;
    };
    for (const Transfer& t : part.sends) volumes[t.dst].sent += bytes(t);
    for (const Transfer& t : part.recvs) volumes[t.src].received += bytes(t);
  }
  for (auto& [rank, volume] : volumes) {
    volume.peer = rank;
    peers_.push_back(volume);
  }
}

/// Clears the padding of `between`: on a GPU asynchronously, but before what runs next there.
Result<> Job::clear(StagingTensors& between) const {
  if (between_stream_) return between.clear(*between_stream_);
  between.clear();
  return {};
}

Result<> Job::renew_memory() {
  for (PlannedMove& move : moves_) RESHARD_TRY(move.renew_memory());
  return {};
}

Result<> Job::run(int copy, bool verify, SessionReport& report) {
  for (const View& view : views_) view.values->set_device(view.of->device(), view.of->stream());
  RESHARD_TRY(or_end(group_, carried_.copy_to(copy, pool_)));
  for (PlannedMove& move : moves_) {
    if (StagingTensors* between = move.between()) RESHARD_TRY(or_end(group_, clear(*between)));
    report.add(RESHARD_TRY(move.refit(copy).run()), move.between() == nullptr);
    if (!verify || move.is_direct()) continue;
    const Stopwatch clock;
    auto checked = move.check(group_, copy);
    report.check_seconds += clock.seconds();
    RESHARD_TRY(std::move(checked));
  }
  return {};
}

TargetDigests* Job::digests(int copy) {
  if (digests_.empty()) return nullptr;
  return &digests_[digests_.size() > 1 ? static_cast<std::size_t>(copy) : 0];
}

Result<> Job::check(int copy) {
  for (PlannedMove& move : moves_)
    if (move.is_direct()) RESHARD_TRY(move.check(group_, copy));
  if (TargetDigests* const now = digests(copy))
    recorded_ = RESHARD_TRY(or_end(group_, now->read()));
  return {};
}

Result<> Job::check_again(int copy, bool recorded) {
  for (PlannedMove& move : moves_) {
    if (recorded) {
      if (move.is_direct()) RESHARD_TRY(move.check_recorded(group_, copy));
      continue;
    }
    if (StagingTensors* between = move.between()) {
      RESHARD_TRY(or_end(group_, clear(*between)));
      RESHARD_TRY(move.refit(copy).run());
    }
    RESHARD_TRY(move.check(group_, copy));
  }
  std::string mine;
  std::vector<std::uint64_t> found;
  if (TargetDigests* const now = digests(copy); recorded && now != nullptr)
    found = RESHARD_TRY(or_end(group_, now->read()));
  for (std::size_t i = 0; i < found.size() && mine.empty(); ++i)
    if (found[i] != recorded_[i])
      mine = fmt::format("local tensor '{}' is not what was committed",
                         target_.stored()->slot(converted_[i].slot).name);
  const std::string first =
      RESHARD_TRY(or_end(group_, agree_on_reason(mine, group_.control, group_.deadline())));
  if (!first.empty()) return fail(Code::corrupt, first);
  return {};
}

std::string_view Job::path() const {
  if (moves_.empty()) return "direct";
  const std::string_view first = moves_.front().refit().path();
  const auto same = [&](const PlannedMove& move) { return move.refit().path() == first; };
  return std::ranges::all_of(moves_, same) ? first : "mixed";
}

const std::string& Job::reason() const {
  static const std::string none;
  for (const PlannedMove& move : moves_)
    if (!move.refit().reason().empty()) return move.refit().reason();
  return none;
}

const RelaySummary* Job::relays() const {
  for (const PlannedMove& move : moves_)
    if (const auto& relays = move.planner().relays()) return &*relays;
  return nullptr;
}

Index Job::staging_bytes() const {
  Index most = 0;
  for (const PlannedMove& move : moves_) most = std::max(most, move.staging_bytes());
  return arena_.size() + gpu_arena_.size() + most;
}

}  // namespace reshard::conversion
