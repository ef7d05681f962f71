// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/device/step_order.h"

namespace reshard::device {

StepOrder::StepOrder(const Program& program, const ProgramLaunches& launches)
    : program_(&program), num_steps_(program.steps.size()) {
  for (std::size_t s = 0; s < program.steps.size(); ++s) {
    const StepId id(static_cast<StepId::rep>(s));
    launched_.push_back(program.steps[s].kind == ProgramStep::Kind::tile &&
                        !launches.is_resident(id));
    waits_.push_back(static_cast<std::uint32_t>(program.waits_of(id).size()));
  }
  const auto both = [&](StepId before, StepId after) {
    return launched_[before.index()] && launched_[after.index()];
  };
  at_launch_ = edges_where(both);
  at_end_ = edges_where([&](StepId before, StepId after) { return !both(before, after); });
  left_ = waits_;
  ready_.reserve(num_steps_);
  if (num_steps_ > 1 && program.steps.back().kind == ProgramStep::Kind::barrier) --num_steps_;
}

template <class F>
StepOrder::Edges StepOrder::edges_where(F&& is_edge) const {
  const std::size_t n = program_->steps.size();
  Edges out;
  out.first.assign(n + 1, 0);
  const auto for_each = [&](auto&& f) {
    for (std::size_t s = 0; s < n; ++s) {
      const StepId after(static_cast<StepId::rep>(s));
      for (const StepId before : program_->waits_of(after))
        if (is_edge(before, after)) f(before, after);
    }
  };
  for_each([&](StepId before, StepId) { ++out.first[before.index() + 1]; });
  for (std::size_t s = 0; s < n; ++s) out.first[s + 1] += out.first[s];
  out.to.resize(out.first[n]);
  std::vector<std::uint32_t> at(out.first);
  for_each([&](StepId before, StepId after) { out.to[at[before.index()]++] = after; });
  return out;
}

void StepOrder::restart() {
  left_ = waits_;
  ready_.clear();
  next_ = 0;
  not_ended_ = num_steps_;
  for (std::size_t s = 0; s < left_.size(); ++s)
    if (launched_[s] && left_[s] == 0) ready_.emplace_back(static_cast<StepId::rep>(s));
}

std::optional<StepId> StepOrder::next_tile() const {
  if (next_ == ready_.size()) return std::nullopt;
  return ready_[next_];
}

void StepOrder::launch() { release(at_launch_, ready_[next_++]); }

void StepOrder::end(StepId s) {
  --not_ended_;
  release(at_end_, s);
}

void StepOrder::release(const Edges& edges, StepId s) {
  for (std::uint32_t i = edges.first[s.index()]; i < edges.first[s.index() + 1]; ++i) {
    const StepId after = edges.to[i];
    if (--left_[after.index()] == 0 && launched_[after.index()]) ready_.push_back(after);
  }
}

}  // namespace reshard::device
