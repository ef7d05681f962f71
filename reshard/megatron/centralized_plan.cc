// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/centralized_plan.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

#include "reshard/base/bytes.h"
#include "reshard/model/reported/gathered.h"
#include "reshard/model/reported/metadata_codec.h"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

std::string_view view(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

Result<Bytes> encoded(const RankMetadata* rank) {
  MetadataGatherer gatherer;
  if (rank != nullptr) RESHARD_TRY(gatherer.add(*rank));
  return encode_metadata(std::move(gatherer).finish());
}

/// This rank's report: the metadata of both its models.
Result<Bytes> report(const RankMetadata* src, const RankMetadata* dst) {
  if (src != nullptr && dst != nullptr && src->rank != dst->rank)
    return fail(Code::invalid_argument,
                fmt::format("a rank reports its source as rank {} and its destination as rank {}",
                            src->rank.value(), dst->rank.value()));
  const Bytes from = RESHARD_TRY(encoded(src)), to = RESHARD_TRY(encoded(dst));
  ByteWriter w;
  w.text(view(from));
  w.text(view(to));
  return std::move(w).finish();
}

/// All ranks' reports, and the rank number that each member of the group reported.
struct Reports {
  GatheredMetadata source, target;
  std::vector<std::optional<Rank>> ranks;
};

Result<Reports> read_reports(const std::vector<Bytes>& all) {
  MetadataGatherer source, target;
  Reports out;
  for (const Bytes& bytes : all) {
    ByteReader r(bytes, "report");
    const auto from = r.text(bytes.size(), "the source's metadata");
    const auto to = r.text(bytes.size(), "the destination's metadata");
    RESHARD_TRY(r.finish());
    const auto source_part = RESHARD_TRY(decode_metadata(bytes_of(from)));
    const auto target_part = RESHARD_TRY(decode_metadata(bytes_of(to)));
    RESHARD_TRY(source.add(source_part));
    RESHARD_TRY(target.add(target_part));
    std::optional<Rank> rank;
    for (const auto* part : {&source_part, &target_part})
      if (!part->ranks.empty()) rank = part->ranks[0].rank;
    out.ranks.push_back(rank);
  }
  out.source = std::move(source).finish();
  out.target = std::move(target).finish();
  return out;
}

Result<GatheredPlanner> plan(const Reports& reports) {
  const GatheredPair pair = RESHARD_TRY(gathered_layouts(reports.source, reports.target));
  auto planner = RESHARD_TRY(Planner::make(pair.source, pair.target, {pair.ignore}));
  return GatheredPlanner{std::make_shared<const Planner>(std::move(planner)), pair.ignore};
}

/// An error unless all ranks have the same plan.
Result<> compare_digests(ControlPlane& control, std::uint64_t digest, Deadline deadline) {
  ByteWriter w;
  w.number(digest);
  const Bytes mine = std::move(w).finish();
  const auto all = RESHARD_TRY(control.all_gather(mine, deadline));
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r] != mine)
      return fail(Code::corrupt,
                  fmt::format("rank {} has another plan than rank {}", r, control.rank().value()));
  return {};
}

/// The message of rank 0: the plan of each member of the group, or an error.
Bytes scattered(const Reports& reports) {
  ByteWriter w;
  const auto planner = plan(reports);
  w.number(planner ? 0 : 1 + static_cast<std::uint64_t>(planner.error().code));
  if (!planner) {
    w.text(planner.error().message);
    return std::move(w).finish();
  }
  auto plans = centralized_reshard_plans(*planner->planner);
  for (const auto& rank : reports.ranks)
    w.text(view(encode_reshard_plan(rank ? plans[*rank] : ReshardPlan{})));
  return std::move(w).finish();
}

Result<ReshardPlan> receive_scattered(const Bytes& bytes, int rank) {
  ByteReader r(bytes, "scattered plans");
  constexpr auto kAny = std::numeric_limits<std::size_t>::max();
  const auto code = r.number(1 + static_cast<std::uint64_t>(Code::aborted), "a code");
  if (r.ok() && code > 0) {
    const auto message = r.text(kAny, "a message");
    RESHARD_TRY(r.finish());
    return fail(static_cast<Code>(code - 1), std::string(message));
  }
  std::string_view mine;
  for (int i = 0; i <= rank; ++i) mine = r.text(kAny, "a plan");
  if (!r.ok()) RESHARD_TRY(r.finish());
  return decode_reshard_plan(bytes_of(mine));
}

/// Gathers all ranks' reports.
Result<Reports> gather_reports(ControlPlane& control, const RankMetadata* src,
                               const RankMetadata* dst, Deadline deadline) {
  const auto mine = report(src, dst);
  if (!mine) {
    control.abort(mine.error().message);
    return tl::unexpected(mine.error());
  }
  const auto all = RESHARD_TRY(control.all_gather(*mine, deadline));
  return read_reports(all);
}

Result<GatheredPlanner> agreed_planner(ControlPlane& control, const Reports& reports,
                                       Deadline deadline) {
  GatheredPlanner out = RESHARD_TRY(plan(reports));
  RESHARD_TRY(compare_digests(control, out.planner->digest(), deadline));
  return out;
}

}  // namespace

Result<ReshardPlan> build_centralized_reshard_plan(ControlPlane& control, const RankMetadata* src,
                                                   const RankMetadata* dst, PlannedBy planned_by,
                                                   Deadline deadline) {
  const Reports reports = RESHARD_TRY(gather_reports(control, src, dst, deadline));
  if (planned_by == PlannedBy::rank_zero) {
    const Bytes sent = control.rank() == Rank(0) ? scattered(reports) : Bytes{};
    const auto received = RESHARD_TRY(control.all_gather(sent, deadline));
    return receive_scattered(received[0], control.rank().value());
  }
  const auto agreed = RESHARD_TRY(agreed_planner(control, reports, deadline));
  const auto& rank = reports.ranks[control.rank().index()];
  return rank ? replayed_reshard_plan(*agreed.planner, *rank) : ReshardPlan{};
}

Result<GatheredPlanner> gather_planner(ControlPlane& control, const RankMetadata* src,
                                       const RankMetadata* dst, Deadline deadline) {
  const Reports reports = RESHARD_TRY(gather_reports(control, src, dst, deadline));
  return agreed_planner(control, reports, deadline);
}

}  // namespace reshard
