// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/reference/reference_values.h"

#include <cstring>

#include "reshard/convert/reference/oracle_values.h"

namespace reshard {

Result<> OracleReferenceValues::write(const std::shared_ptr<const ModelLayout>& layout, Rank r,
                                      SlotId slot, std::span<std::byte> to, int) {
  return fill_local_from_oracle({OracleKind::weights, seed_}, *layout, r, slot, via_, to.data());
}

Result<std::shared_ptr<const Planner>> StreamedReferenceValues::planner(
    const std::shared_ptr<const ModelLayout>& to) {
  const std::lock_guard lock(mutex_);
  auto& known = planners_[to.get()];
  if (!known) known = RESHARD_TRY(plan_of_both(from_, to));
  return known;
}

Result<> StreamedReferenceValues::write(const std::shared_ptr<const ModelLayout>& layout, Rank r,
                                        SlotId slot, std::span<std::byte> to, int threads) {
  const auto plan = RESHARD_TRY(planner(layout));
  return stream_into(*plan, source_, r, slot, to, threads);
}

Result<std::shared_ptr<const Planner>> plan_of_both(std::shared_ptr<const ModelLayout> from,
                                                    std::shared_ptr<const ModelLayout> to) {
  PlanOptions options;
  for (Index i = 0; i < from->model().size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    if (from->parts_of(id).empty() || to->parts_of(id).empty())
      options.ignore.insert(from->model()[id].name);
  }
  return std::make_shared<const Planner>(
      RESHARD_TRY(Planner::make(std::move(from), std::move(to), options)));
}

Result<> stream_into(const Planner& planner, const StreamSource& source, Rank r, SlotId slot,
                     std::span<std::byte> to, int threads) {
  const StreamSink sink = [&](Rank, SlotId, Index offset,
                              std::span<const std::byte> bytes) -> Result<> {
    std::memcpy(to.data() + offset, bytes.data(), bytes.size());
    return {};
  };
  StreamOptions options;
  options.threads = threads;
  options.buffer_bytes = Index{1} << 20;
  return stream_rank(planner, source, r, {&slot, 1}, sink, options);
}

}  // namespace reshard
