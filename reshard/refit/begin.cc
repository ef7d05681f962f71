// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/begin.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "reshard/base/hash.h"

namespace reshard {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kProtocol = 0x7265666974000001;  ///< "refit", and its version.
constexpr std::size_t kMostText = 400;
constexpr std::uint64_t kMostStaging = std::uint64_t{1} << 60;
using Words = std::array<std::uint64_t, 10>;

/// Words, then the two texts; nothing is allocated where there are none.
Result<std::vector<std::vector<std::byte>>> gather(const BeginRecord& mine, ControlPlane& control,
                                                   Deadline deadline) {
  const std::string_view trouble = std::string_view(mine.trouble).substr(0, kMostText);
  const std::string_view change = std::string_view(mine.change).substr(0, kMostText);
  const Words words = {kProtocol,
                       static_cast<std::uint64_t>(mine.kind),
                       static_cast<std::uint64_t>(mine.version),
                       static_cast<std::uint64_t>(mine.held),
                       mine.source,
                       mine.target,
                       mine.options,
                       mine.addresses,
                       mine.staging,
                       trouble.size()};
  std::array<std::byte, sizeof(Words) + 2 * kMostText> bytes;
  std::memcpy(bytes.data(), words.data(), sizeof words);
  std::size_t end = sizeof words;
  for (const std::string_view text : {trouble, change}) {
    if (!text.empty()) std::memcpy(bytes.data() + end, text.data(), text.size());
    end += text.size();
  }
  return control.all_gather(std::span(bytes).first(end), deadline);
}

Result<BeginRecord> decode(std::span<const std::byte> bytes, std::size_t rank) {
  const auto wrong = [&](std::string_view why) {
    return fail(Code::corrupt, fmt::format("what rank {} sent to begin a refit: {}", rank, why));
  };
  Words words;
  if (bytes.size() < sizeof words || bytes.size() > sizeof words + 2 * kMostText)
    return wrong(fmt::format("{} bytes", bytes.size()));
  std::memcpy(words.data(), bytes.data(), sizeof words);
  if (words[0] != kProtocol)
    return wrong(fmt::format("protocol {}, here {}: another version of reshard, or another call",
                             hex(words[0]), hex(kProtocol)));
  const std::string_view texts(reinterpret_cast<const char*>(bytes.data()) + sizeof words,
                               bytes.size() - sizeof words);
  if (words[1] != 1 && words[1] != 2) return wrong(fmt::format("kind {}", words[1]));
  if (words[9] > texts.size()) return wrong("its text is cut");
  return BeginRecord{static_cast<BeginRecord::Kind>(words[1]),
                     static_cast<std::int64_t>(words[2]),
                     static_cast<std::int64_t>(words[3]),
                     words[4],
                     words[5],
                     words[6],
                     words[7],
                     words[8],
                     std::string(texts.substr(0, words[9])),
                     std::string(texts.substr(words[9]))};
}

const char* call_of(BeginRecord::Kind kind) {
  return kind == BeginRecord::Kind::prepare ? "prepare()" : "refit()";
}

/// What of a job two ranks do not have alike; null where they do.
const char* difference(const BeginRecord& a, const BeginRecord& b) {
  if (a.source != b.source) return "source layout";
  if (a.target != b.target) return "target layout";
  return a.options != b.options ? "session options" : nullptr;
}

}  // namespace

Result<> exchange_records(const BeginRecord& mine, ControlPlane& control, Deadline deadline,
                          BeginRecords& all) {
  const auto given = RESHARD_TRY(gather(mine, control, deadline));
  all.resize(given.size());
  for (std::size_t r = 0; r < given.size(); ++r) all[r] = RESHARD_TRY(decode(given[r], r));
  return {};
}

Result<> same_call(const BeginRecords& records) {
  for (std::size_t r = 0; r < records.size(); ++r) {
    const BeginRecord& record = records[r];
    if (record.kind != records.front().kind)
      return fail(Code::invalid_argument,
                  fmt::format("rank {} calls {} but rank 0 calls {}; all ranks must make the same "
                              "calls in the same order",
                              r, call_of(record.kind), call_of(records.front().kind)));
    if (!record.trouble.empty())
      return fail(Code::invalid_argument, fmt::format("rank {}: {}", r, record.trouble));
  }
  return {};
}

Index least_staging(const BeginRecords& records) {
  std::uint64_t least = records.front().staging;
  for (const BeginRecord& record : records) least = std::min(least, record.staging);
  return static_cast<Index>(std::min(least, kMostStaging));
}

Result<> same_job(const BeginRecords& records) {
  for (std::size_t r = 0; r < records.size(); ++r)
    if (const char* what = difference(records[r], records.front()))
      return fail(Code::invalid_argument,
                  fmt::format("rank {} has another {} than rank 0; all ranks must pass equal "
                              "models, layouts, formats and options",
                              r, what));
  return {};
}

Result<> same_version(const BeginRecords& records) {
  const std::int64_t version = records.front().version;
  for (std::size_t r = 0; r < records.size(); ++r)
    if (records[r].version != version)
      return fail(Code::invalid_argument,
                  fmt::format("rank {} refits version {} but rank 0 version {}; all ranks must "
                              "pass the same",
                              r, records[r].version, version));
  if (version < 0 || version > kMostVersion)
    return fail(Code::invalid_argument,
                fmt::format("version {} is not from 0 to {}", version, kMostVersion));
  for (std::size_t r = 0; r < records.size(); ++r)
    if (records[r].held >= version)
      return fail(Code::invalid_argument,
                  fmt::format("version {} is not above version {}, which rank {} holds", version,
                              records[r].held, r));
  return {};
}

std::string first_change(const BeginRecords& before, const BeginRecords& now) {
  for (std::size_t r = 0; r < now.size(); ++r) {
    if (const char* what = difference(before[r], now[r]))
      return fmt::format("rank {} has another {} than when it prepared", r, what);
    if (!now[r].change.empty()) return fmt::format("rank {}: {}", r, now[r].change);
    if (before[r].addresses != now[r].addresses)
      return fmt::format("rank {} has other memory than when it prepared", r);
  }
  return "";
}

}  // namespace reshard
