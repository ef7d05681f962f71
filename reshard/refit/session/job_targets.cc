// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/session/job_targets.h"

#include "reshard/model/place_layouts.h"

namespace reshard::session {

Result<JobTarget::View> JobTarget::view(const std::shared_ptr<const ModelLayout>& layout,
                                        const RankBuffers* part, Rank me) {
  if (part == nullptr) return View{};
  auto joined = std::make_unique<RankBuffers>(layout);
  // A joined layout has a rank's local tensors in the order of its part.
  const std::vector<SlotId> there = part->layout().slots_of(me), here = layout->slots_of(me);
  for (std::size_t i = 0; i < there.size(); ++i) {
    std::byte* const at = part->at(me, there[i]);
    if (at == nullptr) continue;
    const std::span bytes(at, static_cast<std::size_t>(part->bytes(me, there[i])));
    RESHARD_TRY(part->read_only(me, there[i]) ? joined->bind_read_only(me, here[i], bytes)
                                              : joined->bind(me, here[i], bytes));
  }
  return View{part, std::move(joined)};
}

Result<JobTarget> JobTarget::join(std::shared_ptr<const ModelLayout> layout,
                                  std::span<const SessionSide> parts, Rank me) {
  JobTarget out{SessionSide{.layout = layout}};
  for (const SessionSide& part : parts) {
    if (!part.layout->ranks().contains(me)) continue;
    out.buffers_ = RESHARD_TRY(view(layout, part.buffers, me));
    out.back_ = RESHARD_TRY(view(layout, part.back, me));
  }
  out.side_.buffers = out.buffers_.joined.get();
  out.side_.back = out.back_.joined.get();
  out.renew_stream();
  return out;
}

void JobTarget::renew_stream() {
  for (View* view : {&buffers_, &back_})
    if (view->joined != nullptr) view->joined->set_device(view->of->device(), view->of->stream());
}

Result<std::vector<JobTarget>> job_targets(std::span<const SessionSide> targets, Rank me) {
  std::vector<JobTarget> out;
  std::vector<SessionSide> parts;
  std::vector<std::shared_ptr<const ModelLayout>> layouts;
  std::shared_ptr<const ModelLayout> joined;
  for (const SessionSide& target : targets) {
    if (target.quantised != nullptr) {
      out.emplace_back(target);
      continue;
    }
    layouts.push_back(target.layout);
    if (parts.empty()) {
      joined = target.layout;
    } else if (auto made = join_layouts(layouts)) {
      joined = std::make_shared<const ModelLayout>(*std::move(made));
    } else {
      layouts.pop_back();
      out.emplace_back(target);
      continue;
    }
    parts.push_back(target);
  }
  if (parts.size() == 1) out.emplace_back(parts.front());
  if (parts.size() > 1) out.push_back(RESHARD_TRY(JobTarget::join(joined, parts, me)));
  return out;
}

}  // namespace reshard::session
