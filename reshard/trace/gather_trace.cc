// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/gather_trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/trace/recorder.h"
#include "reshard/trace/trace_bytes.h"

namespace reshard::trace {
namespace {

using Bytes = std::vector<std::byte>;

const MessageId kTraceMessage{0};

/// The most bytes of an encoded event: more than it needs.
constexpr std::uint64_t kMaxEventBytes = 96;

std::uint64_t max_bytes(int ranks) {
  return TraceRecorder::capacity_of(ranks) * kMaxEventBytes + 2 * TraceRecorder::kMaxNamesBytes;
}

Result<std::vector<std::uint64_t>> gather_sizes(std::uint64_t mine, ControlPlane& control,
                                                Deadline deadline) {
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(control.size()));
  RESHARD_TRY(control.all_gather_into(std::as_bytes(std::span(&mine, 1)),
                                      std::as_writable_bytes(std::span(sizes)), deadline));
  for (std::size_t r = 0; r < sizes.size(); ++r)
    if (sizes[r] > max_bytes(control.size()))
      return fail(Code::corrupt, fmt::format("the trace of rank {} has {} bytes, at most {} are "
                                             "allowed",
                                             r, sizes[r], max_bytes(control.size())));
  return sizes;
}

/// The bytes of all ranks, on rank 0.
Result<std::vector<Bytes>> exchange(const Bytes& mine, const std::vector<std::uint64_t>& sizes,
                                    Transport& transport, Deadline deadline) {
  std::vector<Bytes> all(sizes.size());
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  if (transport.rank() == Rank(0)) {
    for (std::size_t r = 1; r < sizes.size(); ++r) {
      all[r].resize(static_cast<std::size_t>(sizes[r]));
      recvs.push_back({Rank(static_cast<int>(r)), kTraceMessage, all[r]});
    }
  } else {
    sends.push_back({Rank(0), kTraceMessage, mine});
  }
  const auto event = RESHARD_TRY(transport.exchange(sends, recvs));
  RESHARD_TRY(event->wait(deadline));
  return all;
}

}  // namespace

void align_trace(RankTrace& trace, const ClockOffset& offset) {
  for (TraceEvent& e : trace.events) {
    e.begin_ns += offset.offset_ns;
    e.end_ns += offset.offset_ns;
  }
}

Result<std::optional<GroupTrace>> gather_trace(const RankTrace& mine,
                                               const std::vector<ClockOffset>& clocks,
                                               Transport& transport, ControlPlane& control,
                                               Deadline deadline) {
  Bytes bytes = encode_trace(mine);
  const auto sizes = RESHARD_TRY(gather_sizes(bytes.size(), control, deadline));
  auto all = transport.capabilities().message ? exchange(bytes, sizes, transport, deadline)
                                              : control.all_gather(bytes, deadline);
  if (!all) return tl::unexpected(std::move(all).error());
  if (control.rank() != Rank(0)) return std::optional<GroupTrace>();
  (*all)[0] = std::move(bytes);
  GroupTrace trace;
  for (std::size_t r = 0; r < all->size(); ++r) {
    auto decoded = decode_trace((*all)[r], Rank(static_cast<int>(r)), control.size());
    trace.ranks.push_back(RESHARD_TRY(std::move(decoded)));
    align_trace(trace.ranks.back(), clocks[r]);
    trace.clock_error_ns = std::max(trace.clock_error_ns, clocks[r].error_ns);
  }
  return trace;
}

}  // namespace reshard::trace
