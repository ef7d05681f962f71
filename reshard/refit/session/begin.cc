// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/session/begin.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "reshard/base/hash.h"
#include "reshard/refit/session.h"

namespace reshard::session {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kProtocol = 0x7265666974000006;  ///< "refit", and its version.
constexpr std::size_t kMaxText = 400;
constexpr std::uint64_t kMaxStaging = std::uint64_t{1} << 60;

BeginWords words_of(const BeginRecord& record) {
  return {kProtocol,
          static_cast<std::uint64_t>(record.kind),
          static_cast<std::uint64_t>(record.version),
          static_cast<std::uint64_t>(record.target_version),
          record.source,
          record.target,
          record.options,
          record.addresses,
          record.staging,
          std::min(record.trouble.size(), kMaxText),
          std::min(record.change.size(), kMaxText),
          record.memory};
}

std::size_t text_bytes(const BeginWords& words) {
  return static_cast<std::size_t>(words[9] + words[10]);
}

auto corrupt(std::size_t rank, std::string_view why) {
  return fail(Code::corrupt, fmt::format("the begin record from rank {}: {}", rank, why));
}

Result<> check(const BeginWords& words, std::size_t rank) {
  if (words[0] != kProtocol)
    return corrupt(rank,
                   fmt::format("protocol {}, here {}: another version of reshard, or another call",
                               hex(words[0]), hex(kProtocol)));
  if (words[1] != 1 && words[1] != 2) return corrupt(rank, fmt::format("kind {}", words[1]));
  if (words[9] > kMaxText || words[10] > kMaxText)
    return corrupt(rank, fmt::format("texts of {} and {} bytes", words[9], words[10]));
  return {};
}

/// Decodes into a record, reusing the memory of its texts.
void decode(const BeginWords& words, BeginRecord& record) {
  record.kind = static_cast<BeginRecord::Kind>(words[1]);
  record.version = static_cast<std::int64_t>(words[2]);
  record.target_version = static_cast<std::int64_t>(words[3]);
  record.source = words[4];
  record.target = words[5];
  record.options = words[6];
  record.addresses = words[7];
  record.staging = words[8];
  record.memory = words[11];
  record.trouble.clear();
  record.change.clear();
}

/// Collective. Sets the texts of all records.
Result<> exchange_texts(const BeginRecord& mine, ControlPlane& control, Deadline deadline,
                        BeginRecords& all, const std::vector<BeginWords>& words) {
  const std::string texts = mine.trouble.substr(0, kMaxText) + mine.change.substr(0, kMaxText);
  const auto received = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(texts)), deadline));
  for (std::size_t r = 0; r < received.size(); ++r) {
    if (received[r].size() != text_bytes(words[r]))
      return corrupt(r, fmt::format("{} bytes of text, expected {}", received[r].size(),
                                    text_bytes(words[r])));
    const std::string_view text(reinterpret_cast<const char*>(received[r].data()),
                                received[r].size());
    all[r].trouble = text.substr(0, static_cast<std::size_t>(words[r][9]));
    all[r].change = text.substr(static_cast<std::size_t>(words[r][9]));
  }
  return {};
}

const char* call_of(BeginRecord::Kind kind) {
  return kind == BeginRecord::Kind::prepare ? "prepare()" : "refit()";
}

/// The names of the choices in an options word, from its lowest bits on, and of their values.
struct Choice {
  const char* name;
  std::array<const char*, 3> values;
};
constexpr std::array<Choice, 7> kChoices{{{"buffering", {"in_place", "doubled"}},
                                          {"verify", {"never", "always"}},
                                          {"convert", {"receiver", "sender"}},
                                          {"path", {"automatic", "direct", "message"}},
                                          {"replan", {"false", "true"}},
                                          {"trace", {"off", "on"}},
                                          {"routes", {"direct", "auto"}}}};
constexpr int kBitsPerChoice = 4,
              kBitsOfChoices = kBitsPerChoice * static_cast<int>(kChoices.size());

std::size_t value_of(std::uint64_t word, std::size_t choice) {
  return (word >> (kBitsPerChoice * choice)) & ((1U << kBitsPerChoice) - 1);
}

std::string value_text(std::uint64_t word, std::size_t choice) {
  const std::size_t value = value_of(word, choice);
  const char* known = value < 3 ? kChoices[choice].values[value] : nullptr;
  return known != nullptr ? known : fmt::format("unknown value {}", value);
}

/// The difference between two ranks: a layout or an option, and the option's value on each.
struct Difference {
  std::string what;
  std::string mine = {}, other = {};  ///< " (value)", or empty.
};

Difference option_difference(std::uint64_t mine, std::uint64_t other) {
  for (std::size_t i = 0; i < kChoices.size(); ++i)
    if (value_of(mine, i) != value_of(other, i))
      return {fmt::format("session option {}", kChoices[i].name),
              fmt::format(" ({})", value_text(mine, i)),
              fmt::format(" ({})", value_text(other, i))};
  return {"session option ignore or only"};
}

/// None if they are equal.
std::optional<Difference> difference(const BeginRecord& mine, const BeginRecord& other) {
  if (mine.source != other.source) return Difference{"source layout"};
  if (mine.target != other.target) return Difference{"target layout"};
  if (mine.options != other.options) return option_difference(mine.options, other.options);
  return std::nullopt;
}

}  // namespace

std::uint64_t options_word(const SessionOptions& options) {
  const std::array values{static_cast<std::uint64_t>(options.buffering),
                          static_cast<std::uint64_t>(options.verify),
                          static_cast<std::uint64_t>(options.convert),
                          static_cast<std::uint64_t>(options.refit.path),
                          static_cast<std::uint64_t>(options.replan),
                          static_cast<std::uint64_t>(!options.trace.path.empty()),
                          static_cast<std::uint64_t>(options.routes)};
  static_assert(std::tuple_size_v<decltype(values)> == kChoices.size());
  Digest ignored;
  ignored.add(options.ignore.size());
  for (const std::string& name : options.ignore) ignored.add(name);
  for (const std::string& name : options.only) ignored.add(name);
  std::uint64_t word = ignored.value() << kBitsOfChoices;
  for (std::size_t i = 0; i < values.size(); ++i) word |= values[i] << (kBitsPerChoice * i);
  return word;
}

Result<> exchange_records(const BeginRecord& mine, ControlPlane& control, Deadline deadline,
                          BeginRecords& all, std::vector<BeginWords>& buffer) {
  const BeginWords words = words_of(mine);
  buffer.resize(static_cast<std::size_t>(control.size()));
  RESHARD_TRY(control.all_gather_into(std::as_bytes(std::span(words)),
                                      std::as_writable_bytes(std::span(buffer)), deadline));
  all.resize(buffer.size());
  bool texts = false;
  for (std::size_t r = 0; r < buffer.size(); ++r) {
    RESHARD_TRY(check(buffer[r], r));
    decode(buffer[r], all[r]);
    texts |= text_bytes(buffer[r]) > 0;
  }
  if (texts) return exchange_texts(mine, control, deadline, all, buffer);
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
  return static_cast<Index>(std::min(least, kMaxStaging));
}

Result<> same_job(const BeginRecords& records) {
  for (std::size_t r = 0; r < records.size(); ++r)
    if (const auto found = difference(records[r], records.front()))
      return fail(Code::invalid_argument,
                  fmt::format("rank {}'s {}{} differs from rank 0's{}; all ranks must pass equal "
                              "models, layouts, formats and options",
                              r, found->what, found->mine, found->other));
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
  if (version < 0 || version > kMaxVersion)
    return fail(Code::invalid_argument,
                fmt::format("version {} is not from 0 to {}", version, kMaxVersion));
  for (std::size_t r = 0; r < records.size(); ++r)
    if (records[r].target_version >= version)
      return fail(Code::invalid_argument,
                  fmt::format("version {} is not above version {}, which rank {} holds", version,
                              records[r].target_version, r));
  return {};
}

bool memory_changed(const BeginRecords& before, const BeginRecords& now) {
  return !std::ranges::equal(before, now, {}, &BeginRecord::memory, &BeginRecord::memory);
}

std::string first_change(const BeginRecords& before, const BeginRecords& now) {
  for (std::size_t r = 0; r < now.size(); ++r) {
    if (const auto found = difference(now[r], before[r]))
      return fmt::format("rank {}'s {} changed since prepare()", r, found->what);
    if (!now[r].change.empty()) return fmt::format("rank {}: {}", r, now[r].change);
    if (before[r].addresses != now[r].addresses)
      return fmt::format("the memory of rank {} changed since prepare()", r);
  }
  return "";
}

}  // namespace reshard::session
