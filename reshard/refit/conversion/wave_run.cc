// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/end_group.h"
#include "reshard/exec/rank_path.h"
#include "reshard/refit/conversion/wave.h"
#include "reshard/refit/session/verdict.h"

namespace reshard {

bool Wave::converts_before() const {
  return route_ == Route::quantise_at_sender || route_ == Route::dequantise_at_sender ||
         route_ == Route::requantise;
}

Result<> Wave::convert(Pass& pass, const JobGroup& group, WorkerPool& pool, double& seconds) {
  if (pass.empty()) return {};
  const PhaseClock clock;
  auto done = pass.run(pool, group.control, group.deadline());
  seconds += clock.seconds();
  if (!done) return end_group(group.control, std::move(done).error());
  return {};
}

/// Collective: what a conversion has written is what it writes once more.
Result<> Wave::compare(Pass& pass, const JobGroup& group, WorkerPool& pool) {
  auto wrong = pass.compare(pool, group.control, group.deadline());
  if (!wrong) return end_group(group.control, std::move(wrong).error());
  auto agreed = agree_on_converted(group, *wrong);
  if (!agreed && !is_verdict(group.control, agreed.error()))
    return end_group(group.control, std::move(agreed).error());
  return agreed;
}

/// Until the first move: landing memory, and what it sends where packing does not convert.
Result<> Wave::begin_fetch(const JobGroup& group, WorkerPool& pool, int copy, Moves which,
                           SessionReport& report) {
  if (!banded_)
    for (StagingTensors& landing : landing_) landing.clear(group.me());
  if (packing_) packing_->restart(0);
  const bool converts = which != Moves::again || route_ == Route::quantise_between;
  if (unpacking_) converts ? unpacking_->restart(copy) : unpacking_->skip();
  if (is_fused(0)) return {};
  return convert(before_, group, pool, report.before_seconds);
}

/// Runs the moves with what comes before them, and proves each. `Moves::again`: into landing memory
/// only; what has been moved into a copy is proved as it is.
Result<> Wave::fetch(const JobGroup& group, WorkerPool& pool, int copy, Moves which,
                     SessionReport& report) {
  RESHARD_TRY(begin_fetch(group, pool, copy, which, report));
  for (std::size_t m = 0; m < moves_.size(); ++m) {
    if (m == 1 && !is_fused(0)) RESHARD_TRY(convert(between_, group, pool, report.before_seconds));
    const Index before = report.bytes;
    if (which != Moves::again || lands(m)) RESHARD_TRY(moves_[m].run(copy, report));
    // What landed is no weight yet.
    if (lands(m) || banded_) report.bytes = before;
    if (which != Moves::unproved && !is_direct())
      RESHARD_TRY(prove(group, pool, m, copy, which, report.check_seconds));
  }
  return {};
}

/// Collective: of one move that has been run, and of the conversion before it.
Result<> Wave::prove(const JobGroup& group, WorkerPool& pool, std::size_t m, int copy, Moves which,
                     double& seconds) {
  const PhaseClock clock;
  // Also what nobody needed from here is compared with its replicas.
  if (m == 0 && packing_ && is_fused(0)) packing_->run_rest();
  if (which == Moves::proved && m == 0 && converts_before())
    RESHARD_TRY(compare(before_, group, pool));
  if (which == Moves::proved && m == 1) RESHARD_TRY(compare(between_, group, pool));
  RESHARD_TRY(moves_[m].bring_again(group, copy));
  auto checked = moves_[m].check(group, copy);
  seconds += clock.seconds();
  if (!checked && !is_verdict(group.control, checked.error()))
    return end_group(group.control, std::move(checked).error());
  return checked;
}

Result<> Wave::run(const JobGroup& group, WorkerPool& pool, int copy, bool proved,
                   SessionReport& report) {
  RESHARD_TRY(fetch(group, pool, copy, proved ? Moves::proved : Moves::unproved, report));
  if (banded_) report.bytes += bands_->bytes();
  if (after_.empty()) return {};
  if (!is_fused(0)) RESHARD_TRY(convert(after(copy), group, pool, report.after_seconds));
  report.bytes += after(copy).bytes();
  if (!proved) return {};
  const PhaseClock clock;
  auto compared = compare(after(copy), group, pool);
  report.check_seconds += clock.seconds();
  return compared;
}

Result<> Wave::check(const JobGroup& group, WorkerPool& pool, int copy) {
  SessionReport ignored;
  RESHARD_TRY(fetch(group, pool, copy, Moves::again, ignored));
  if (after_.empty()) return {};
  return compare(after(copy), group, pool);
}

}  // namespace reshard
