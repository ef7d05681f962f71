// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/refit_tracer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "reshard/base/file.h"
#include "reshard/trace/chrome_trace.h"
#include "reshard/trace/gather_trace.h"
#include "reshard/trace/trace_bytes.h"

namespace reshard {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "an unknown host";
  return name.data();
}

}  // namespace

RefitTracer::RefitTracer(TraceOptions options, Rank me, int ranks)
    : options_(std::move(options)), me_(me), recorder_(TraceRecorder::capacity_of(ranks)) {
  recorder_.note_rank(me_, host_name());
}

std::string RefitTracer::trouble() const {
  if (me_ != Rank(0)) return "";
  const auto checked = check_writable(options_.path);
  return checked ? "" : "the trace: " + checked.error().message;
}

Result<> RefitTracer::align_clocks(ControlPlane& control, Deadline deadline) {
  const auto clocks = RESHARD_TRY(trace::align_clocks(control, deadline));
  offset_ns_ = clocks[me_.index()].offset_ns;
  error_ns_ = clocks[me_.index()].error_ns;
  return {};
}

void RefitTracer::restart(std::int64_t version) {
  version_ = version;
  recorder_.restart();
}

/// Analyses the events of all ranks and writes their trace. Rank 0 only.
WhySlow RefitTracer::examine(GroupTrace trace) const {
  trace.version = version_;
  WhySlow why = reshard::why_slow(trace, options_.copy_bytes_per_second);
  if (auto written = write_whole_file(options_.path, trace::chrome_trace(trace)); !written)
    why.problem = std::move(written).error().message;
  return why;
}

Result<> RefitTracer::finish(Transport& transport, ControlPlane& control, Deadline deadline) {
  const auto clocks = RESHARD_TRY(trace::align_clocks(control, deadline));
  offset_ns_ = clocks[me_.index()].offset_ns;
  error_ns_ = clocks[me_.index()].error_ns;
  auto all =
      RESHARD_TRY(trace::gather_trace(recorder_.trace(), clocks, transport, control, deadline));
  std::vector<std::byte> found;
  if (all) found = trace::encode_why_slow(examine(*std::move(all)));
  const auto answers = RESHARD_TRY(control.all_gather(found, deadline));
  why_ = RESHARD_TRY(trace::decode_why_slow(answers[0], control.size()));
  return {};
}

void RefitTracer::finish_alone() {
  GroupTrace alone;
  alone.version = version_;
  alone.clock_error_ns = error_ns_;
  alone.ranks.push_back(recorder_.trace());
  trace::align_trace(alone.ranks[0], {offset_ns_, error_ns_});
  (void)write_whole_file(fmt::format("{}.rank{}", options_.path, me_.value()),
                         trace::chrome_trace(alone));
}

}  // namespace reshard
