// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/direct_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "reshard/exec/agreement.h"
#include "reshard/exec/direct/delivery_copies.h"
#include "reshard/exec/direct/memory_table.h"
#include "reshard/exec/direct/peer_gets.h"
#include "reshard/exec/direct/tile_copies.h"
#include "reshard/program/get_costs.h"

namespace reshard::direct {
namespace {

using namespace program;

/// Messages are used instead if reading costs this many times more. Where the model says 1.6 times
/// (half of each row of 1536 bytes), both took the same time.
constexpr double kCostRatio = 2;

/// The memory of one peer that this rank opened.
struct Peer {
  MemoryTable table;
  std::vector<RemoteMemory> memory;  ///< by span.
};

class DirectPath final : public RankPath {
 public:
  explicit DirectPath(const RankWork& work)
      : transport_(work.transport),
        control_(work.control),
        progress_(work.options.progress),
        pool_(work.hooks.pool) {
    if (pool_ == nullptr) pool_ = &own_pool_.emplace(work.options.threads);
  }

  std::string_view name() const override { return "direct"; }
  Index staging_bytes() const override {
    return gets_.staging_bytes() + (tiles_ ? tiles_->scratch_bytes() : 0);
  }

  /// "", or why this rank cannot reach the memory it needs.
  Result<std::string> open_peers(const RankWork& work);
  /// "", or why the bytes for this rank cannot be gathered in tiles.
  Result<std::string> prepare(const RankWork& work);
  Result<> run(Deadline deadline, RankReport& report) override;
  /// The cost of what this rank reads from others. @pre prepared
  const PathCosts& costs() const { return costs_; }

 private:
  Result<PeerTensor> find(const RankWork& work, Rank r, SlotId slot) const;
  Result<std::string> prepare_tiles(const RankWork& work, const SourceAddress& source);

  Transport& transport_;
  ControlPlane& control_;
  Progress progress_;
  std::optional<WorkerPool> own_pool_;
  WorkerPool* pool_;
  std::map<Rank, Peer> peers_;
  void estimate(const RankWork& work);

  DeliveryCopies copies_;
  std::optional<TileCopies> tiles_;  ///< replaces copies_.units if there is a consumer.
  PeerGets gets_;
  PathCosts costs_;
};

Result<std::string> DirectPath::open_peers(const RankWork& work) {
  const MemoryTable mine = RESHARD_TRY(share_sources(work));
  auto tables = RESHARD_TRY(exchange_tables(work, mine));
  for (auto& [rank, table] : tables) {
    if (!table.reason.empty())
      return fmt::format("rank {} cannot share its memory: {}", rank.value(), table.reason);
    Peer peer{std::move(table), {}};
    for (const auto& span : peer.table.spans) {
      auto opened = transport_.open(rank, span.key);
      if (!opened && opened.error().code == Code::unsupported)
        return std::move(opened).error().message;
      if (!opened) return tl::unexpected(std::move(opened).error());
      if (opened->size < static_cast<std::size_t>(span.bytes))
        return fail(Code::corrupt, fmt::format("rank {} shared {} bytes but announced {}",
                                               rank.value(), opened->size, span.bytes));
      peer.memory.push_back(*opened);
    }
    peers_.emplace(rank, std::move(peer));
  }
  return std::string();
}

Result<PeerTensor> DirectPath::find(const RankWork& work, Rank r, SlotId slot) const {
  const auto peer = peers_.find(r);
  const auto* place = peer == peers_.end() ? nullptr : peer->second.table.find(slot);
  if (place == nullptr)
    return fail(Code::corrupt, fmt::format("rank {} did not share its local tensor '{}'", r.value(),
                                           work.planner.source().slot(slot).name));
  return PeerTensor{&peer->second.memory[place->span], place->offset};
}

Result<std::string> DirectPath::prepare_tiles(const RankWork& work, const SourceAddress& source) {
  const Rank me = work.me();
  auto all = RESHARD_TRY(delivery_tasks(work.planner, {&me, 1}, source, *work.target));
  if (!all.elsewhere.empty()) return std::string("peers' memory is not mapped here");
  copies_.bytes = all.bytes;
  copies_.copies = static_cast<Index>(all.tasks.size());
  tiles_ = RESHARD_TRY(TileCopies::make(all.tasks, *work.hooks.tiles, pool_->size()));
  return std::string();
}

Result<std::string> DirectPath::prepare(const RankWork& work) {
  if (work.part.recvs.empty() && work.part.locals.empty()) return std::string();
  if (work.target == nullptr || &work.target->layout() != &work.planner.target())
    return fail(Code::invalid_argument,
                fmt::format("rank {} is part of {} but passed no buffers for it", work.me().value(),
                            work.planner.target().name()));
  const SourceAddress source = [&](Rank r, SlotId slot) -> Result<const std::byte*> {
    if (r == work.me()) {
      const std::byte* own = work.source == nullptr ? nullptr : work.source->at(r, slot);
      if (own != nullptr) return own;
      return tl::unexpected(missing_memory("source", work.planner.source(), r, slot));
    }
    const PeerTensor tensor = RESHARD_TRY(find(work, r, slot));
    std::byte* address = tensor.memory->address;
    return address == nullptr ? nullptr : address + tensor.offset;
  };
  if (work.hooks.tiles != nullptr) return prepare_tiles(work, source);
  const Rank me = work.me();
  copies_ = RESHARD_TRY(delivery_copies(work.planner, {&me, 1}, source, *work.target));
  gets_ = RESHARD_TRY(PeerGets::prepare(
      copies_.elsewhere, [&](Rank r, SlotId slot) { return *find(work, r, slot); },
      [&](SlotId slot) { return work.target->at(me, slot); }, me, transport_.size(),
      work.options.staging_bytes));
  estimate(work);
  return std::string();
}

void DirectPath::estimate(const RankWork& work) {
  Index mapped = 0;
  for (const Transfer& t : work.part.recvs)
    mapped += t.box.volume() * work.planner.element_bits(t.tensor) / 8;
  double direct = 0, message = 0;
  for (const Move& m : copies_.elsewhere) {
    direct += cost_of_get(m.copy);
    message += cost_of_message(m.copy, work.options.in_place_bytes);
    mapped -= m.copy.bytes();
  }
  const auto left = static_cast<double>(std::max<Index>(mapped, 0));
  costs_ = {static_cast<std::uint64_t>(direct + kMappedCost * left),
            static_cast<std::uint64_t>(message + kMappedMessageCost * left)};
}

Result<> DirectPath::run(Deadline deadline, RankReport& report) {
  const PhaseClock clock;
  // Sources are ready once their ranks are in run().
  RESHARD_TRY(control_.barrier(deadline));
  report.wait_seconds = clock.seconds();
  ProgressMeter meter("refit", tiles_ ? tiles_->bytes() : copies_.bytes, progress_, deadline,
                      &control_);
  tiles_ ? tiles_->run(*pool_, meter) : run_units(copies_.units, *pool_, meter);
  RESHARD_TRY(gets_.run(transport_, meter));
  RESHARD_TRY(meter.finish());
  report.move_seconds = clock.seconds() - report.wait_seconds;
  report.bytes = copies_.bytes;
  report.copies = copies_.copies;
  // Sources may be written again once no rank reads them.
  return control_.barrier(deadline);
}

}  // namespace

Result<DirectPathOutcome> make_direct_path(const RankWork& work) {
  auto path = std::make_unique<DirectPath>(work);
  std::string mine = RESHARD_TRY(path->open_peers(work));
  if (mine.empty()) mine = RESHARD_TRY(path->prepare(work));
  const std::string reason = RESHARD_TRY(agree_on_reason(mine, work.control, work.deadline));
  if (!reason.empty()) return DirectPathOutcome{nullptr, reason};
  if (work.options.path == RefitPath::automatic) {
    const PathCosts costs = RESHARD_TRY(agree_on_costs(path->costs(), work.control, work.deadline));
    const double times = static_cast<double>(costs.direct) /
                         static_cast<double>(std::max<std::uint64_t>(costs.message, 1));
    if (times > kCostRatio)
      return DirectPathOutcome{
          nullptr, fmt::format("reading peers' memory, which is not mapped, in runs this short "
                               "costs {:.1f} times as much as messages",
                               times)};
  }
  return DirectPathOutcome{std::move(path), {}};
}

}  // namespace reshard::direct
