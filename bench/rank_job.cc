// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/common/values.h"
#include "reshard/plan/moves.h"

namespace reshard::bench {
namespace {

Result<std::vector<Index>> gather(const RankJob& job, Index mine) {
  const auto all =
      RESHARD_TRY(job.group.control->all_gather(std::as_bytes(std::span(&mine, 1)), patient()));
  std::vector<Index> out;
  for (const auto& bytes : all) {
    if (bytes.size() != sizeof mine) return fail(Code::corrupt, "a rank sent no number");
    out.push_back(0);
    std::memcpy(&out.back(), bytes.data(), sizeof mine);
  }
  return out;
}

Result<std::unique_ptr<RankBuffers>> own(const std::shared_ptr<const ModelLayout>& layout, Rank me,
                                         bool shared) {
  if (!layout->ranks().contains(me)) return nullptr;
  return std::make_unique<RankBuffers>(RESHARD_TRY(
      RankBuffers::allocate(layout, {&me, 1}, {.prefault_threads = 1, .shared = shared})));
}

}  // namespace

Deadline patient() { return Deadline::after(std::chrono::seconds(300)); }

Result<Index> RankJob::bytes_delivered() const {
  std::vector<Transfer> deliveries;
  planner->for_each_delivery(rank(), [&](const Transfer& t) { deliveries.push_back(t); });
  Index bytes = 0;
  for (const Move& m : RESHARD_TRY(copy_ops(*planner, deliveries))) bytes += m.copy.bytes();
  return bytes;
}

Result<Index> RankJob::sum(Index mine) const {
  Index total = 0;
  for (const Index n : RESHARD_TRY(gather(*this, mine))) total += n;
  return total;
}

Result<Index> RankJob::max(Index mine) const {
  const auto all = RESHARD_TRY(gather(*this, mine));
  return *std::max_element(all.begin(), all.end());
}

Result<RankJob> join_job(Arguments& arguments) {
  RankJob job;
  job.layouts = RESHARD_TRY(case_of(arguments));
  const bool shared = arguments.text("memory", "shared") == "shared";
  job.planner =
      std::make_unique<Planner>(RESHARD_TRY(Planner::make(job.layouts.source, job.layouts.target)));
  const auto place = RESHARD_TRY(launched());
  if (!place)
    return fail(Code::invalid_argument, "start this by mpirun, or with RANK and WORLD_SIZE set");
  RendezvousOptions join;
  join.url = arguments.text("rendezvous");
  join.rank = Rank(place->rank);
  join.size = place->size;
  if (const std::string secret = arguments.text("secret-file"); !secret.empty())
    join.secret = RESHARD_TRY(Secret::from_file(secret));
  join.deadline = patient();
  TransportOptions options;
  options.interface = arguments.text("interface");
  options.deadline = patient();
  const Index world = Index{job.planner->ranks().members().back().value()} + 1;
  if (world > join.size)
    return fail(Code::invalid_argument,
                fmt::format("the layouts have {} ranks, started were {}", world, join.size));
  job.transport = arguments.text("transport");
  job.group = RESHARD_TRY(join_group(job.transport, join, options));
  job.source = RESHARD_TRY(own(job.layouts.source, join.rank, shared));
  job.target = RESHARD_TRY(own(job.layouts.target, join.rank, shared));
  if (job.source) RESHARD_TRY(fill_values(*job.source));
  return job;
}

Contender together(const RankJob& job, std::string name, std::function<Result<>()> work) {
  ControlPlane* const control = job.group.control.get();
  return {std::move(name), [control, work = std::move(work)]() -> Result<> {
            RESHARD_TRY(control->barrier(patient()));
            RESHARD_TRY(work());
            return control->barrier(patient());
          }};
}

}  // namespace reshard::bench
