// SPDX-License-Identifier: Apache-2.0
#include "cli/run/rank_session.h"

#include <algorithm>
#include <cstring>

#include "cli/measure.h"
#include "reshard/convert/reference/refit_check.h"
#include "reshard/exec/device/device_copy.h"
#include "reshard/exec/plain_copy.h"

namespace reshard::cli {
namespace {

/// A deadline for refits within one process, where no rank can die and interrupts are seen.
constexpr double kDay = 86400;

/// Adds a rank's figures, or keeps the maximum.
template <class Figures>
void add(SessionFigures& all, const Figures& f) {
  all.messages += f.messages;
  all.wire += f.wire;
  all.local += f.local;
  all.staging_bytes = std::max(all.staging_bytes, f.staging);
  all.peak_rss_bytes = std::max(all.peak_rss_bytes, f.peak_rss);
  for (const auto& [most, mine] : {std::pair(&all.join, f.join),
                                   {&all.fill, f.fill},
                                   {&all.prepare, f.prepare},
                                   {&all.begin, f.begin},
                                   {&all.wait, f.wait},
                                   {&all.move, f.move},
                                   {&all.finish, f.finish},
                                   {&all.check, f.check},
                                   {&all.commit, f.commit}})
    *most = std::max(*most, mine);
}

}  // namespace

Deadline RankSession::deadline() const {
  return Deadline::after(std::chrono::duration<double>(options().refit.seconds));
}

SessionOptions RankSession::options() const {
  const RunArguments& a = arguments();
  SessionOptions options;
  options.refit.path = a.path;
  options.refit.staging_bytes = a.staging_bytes;
  options.refit.seconds = a.in_processes() ? a.deadline_seconds : kDay;
  options.refit.threads = task_.threads;
  options.refit.progress = task_.moving;
  options.buffering = a.buffering;
  options.verify = a.check_fingerprints ? VerifyMode::always : VerifyMode::never;
  options.convert = a.convert;
  options.ignore = task_.job.pair.ignore;
  options.only = task_.job.pair.only;
  options.trace = {a.trace, plain_rate_};
  options.on_phase = [this](SessionPhase phase) -> Result<> {
    if (phase == SessionPhase::check) task_.at(TestKill::Point::check);
    if (phase == SessionPhase::commit) task_.at(TestKill::Point::commit);
    return {};
  };
  return options;
}

SessionSide RankSession::side(const LayoutSide& side, const RankBuffers* buffers) const {
  SessionSide out = session_side(side);
  const Rank me = task_.transport.rank();
  if (side.stored()->ranks().contains(me)) out.buffers = buffers;
  return out;
}

/// The memory that refits use: of the GPU, if there is one.
const RankBuffers* RankSession::memory(std::optional<RankBuffers> RankWeights::* host,
                                       std::optional<DeviceTensors> GpuWeights::* device) const {
  if (task_.gpu != nullptr) {
    const auto& tensors = task_.gpu->*device;
    return tensors ? &tensors->buffers() : nullptr;
  }
  const auto& buffers = task_.weights.*host;
  return buffers ? &*buffers : nullptr;
}

void RankSession::spent(double join, double fill) {
  mine_.join = join;
  mine_.fill = fill;
}

Result<> RankSession::refit() {
  const LayoutPair& pair = task_.job.pair;
  RESHARD_TRY(measure_plain());
  const Stopwatch preparing;
  SessionSide target = side(pair.to, memory(&RankWeights::target, &GpuWeights::target));
  target.back = side(pair.to, memory(&RankWeights::back, &GpuWeights::back)).buffers;
  Session session = RESHARD_TRY(Session::prepare(
      task_.transport, task_.control,
      side(pair.from, memory(&RankWeights::source, &GpuWeights::source)), target, options()));
  mine_.prepare = preparing.seconds();
  task_.begin_phase("refit", total_bytes(*pair.to.stored()), arguments().repeat);
  RESHARD_TRY(run(session));
  RESHARD_TRY(keep_trace(session));
  mine_.staging = session.staging_bytes();
  SessionFigures& figures = outcome_.session.emplace();
  figures.path = session.path();
  if (task_.transport.capabilities().direct) figures.reason = session.reason();
  figures.version = arguments().repeat;
  target_version_ = session.target_version();
  if (arguments().verify && pair.quantises()) {
    task_.at(TestKill::Point::verify);
    const Stopwatch verifying;
    RESHARD_TRY(take_verdict(session.verify()));
    outcome_.verify_seconds = verifying.seconds();
  }
  if (task_.gpu != nullptr) {
    outcome_.runs.device = task_.gpu->device->name();
    RESHARD_TRY(task_.gpu->read_back(task_.weights));
  }
  // From here on no peer reads this rank's memory.
  return task_.control.barrier(deadline());
}

/// An error of the file is identical on all ranks.
Result<> RankSession::keep_trace(const Session& session) {
  const WhySlow* why = session.why_slow();
  if (why == nullptr) return {};
  if (!why->problem.empty()) return fail(Code::io, "--trace: " + why->problem);
  outcome_.why_slow = *why;
  return {};
}

/// Seconds of the slowest rank's copy within its GPU. Ranks copy at the same time, as in refits.
Result<double> RankSession::plain_seconds_on_gpu() {
  const cuda::Stream stream = RESHARD_TRY(cuda::Stream::make(task_.gpu->device));
  RESHARD_TRY(task_.control.barrier(deadline()));
  const double mine = RESHARD_TRY(plain_copy_seconds(stream, mine_.plain_bytes));
  std::vector<double> all(static_cast<std::size_t>(task_.control.size()));
  RESHARD_TRY(task_.control.all_gather_into(std::as_bytes(std::span(&mine, 1)),
                                            std::as_writable_bytes(std::span(all)), deadline()));
  return std::ranges::max(all);
}

/// Runs before the refits, with the memory of all ranks allocated as in them.
Result<> RankSession::measure_plain() {
  const ModelLayout& target = *task_.job.pair.to.stored();
  const Rank me = task_.transport.rank();
  mine_.plain_bytes = target.ranks().contains(me) ? local_bytes(target, me) : 0;
  plain_seconds_ = task_.gpu != nullptr
                       ? RESHARD_TRY(plain_seconds_on_gpu())
                       : RESHARD_TRY(plain_copy_seconds(task_.control, mine_.plain_bytes,
                                                        task_.threads, deadline()));
  std::vector<Index> bytes(static_cast<std::size_t>(task_.control.size()));
  RESHARD_TRY(task_.control.all_gather_into(std::as_bytes(std::span(&mine_.plain_bytes, 1)),
                                            std::as_writable_bytes(std::span(bytes)), deadline()));
  if (plain_seconds_ > 0)
    plain_rate_ = static_cast<double>(std::ranges::max(bytes)) / plain_seconds_;
  return {};
}

Result<> RankSession::run(Session& session) {
  for (Index i = 0; i < arguments().repeat; ++i) {
    RESHARD_TRY(task_.control.barrier(deadline()));
    task_.at(TestKill::Point::start);
    keep(RESHARD_TRY(session.refit(i + 1)));
  }
  task_.at(TestKill::Point::middle);  // the refit may have ended before half of it was seen
  return {};
}

void RankSession::keep(const SessionReport& report) {
  auto& all = outcome_.runs.seconds;
  if (all.empty() || report.seconds < *std::ranges::min_element(all)) {
    mine_.begin = report.begin_seconds;
    mine_.wait = report.wait_seconds;
    mine_.move = report.move_seconds - report.wait_seconds - report.finish_seconds;
    mine_.finish = report.finish_seconds;
    mine_.check = report.check_seconds;
    mine_.commit = report.commit_seconds;
  }
  all.push_back(report.seconds);
  mine_.bytes = report.bytes;
  mine_.copies = report.copies;
  mine_.messages = report.messages;
  mine_.wire = report.received;
  mine_.local = report.copied;
}

Result<> RankSession::take_verdict(Result<> verdict) {
  if (verdict) return {};
  if (verdict.error().code != Code::corrupt) return verdict;
  if (outcome_.wrong.empty()) outcome_.wrong = std::move(verdict).error().message;
  return {};
}

Result<> RankSession::verify() {
  task_.at(TestKill::Point::verify);
  const Stopwatch verifying;
  const LayoutPair& pair = task_.job.pair;
  task_.begin_phase("verify", total_bytes(*pair.from.stored()) + 2 * total_bytes(*pair.to.stored()),
                    1);
  const auto on_host = [&](const LayoutSide& of, const std::optional<RankBuffers>& buffers) {
    return side(of, buffers ? &*buffers : nullptr).buffers;
  };
  const RankBuffers* const target = on_host(pair.to, task_.weights.readable(target_version_));
  if (pair.quantises()) {
    Result<> same;
    if (target != nullptr)
      same = check_quantised_refit(reference_job(task_.job), *target, task_.threads, task_.reading);
    const auto first = RESHARD_TRY(agree_on_verdict(std::move(same), task_.control, deadline()));
    if (outcome_.wrong.empty()) outcome_.wrong = first;
  } else {
    const auto seed = task_.job.model.weights ? std::nullopt : std::optional(arguments().seed);
    const FingerprintOptions how{task_.threads, deadline(), task_.reading};
    outcome_.wrong =
        RESHARD_TRY(check_rank_refit(*pair.planner, on_host(pair.from, task_.weights.source),
                                     target, seed, task_.transport, task_.control, how, pair.only));
  }
  outcome_.verify_seconds += verifying.seconds();
  outcome_.verified = outcome_.wrong.empty();
  return {};
}

Result<> RankSession::gather() {
  mine_.peak_rss = peak_rss_bytes();
  const auto all =
      RESHARD_TRY(task_.control.all_gather(std::as_bytes(std::span(&mine_, 1)), deadline()));
  outcome_.session->ranks = task_.control.size();
  Index copied = 0;
  for (const auto& bytes : all) {
    Figures f;
    if (bytes.size() != sizeof f)
      return fail(Code::corrupt, "a rank's figures are not those of this program");
    std::memcpy(&f, bytes.data(), sizeof f);
    outcome_.runs.bytes += f.bytes;
    outcome_.runs.copies += f.copies;
    copied += f.plain_bytes;
    add(*outcome_.session, f);
  }
  if (copied > 0)
    outcome_.runs.plain_seconds =
        plain_seconds_ * static_cast<double>(outcome_.runs.bytes) / static_cast<double>(copied);
  return {};
}

}  // namespace reshard::cli
