// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reshard/base/bytes.h"
#include "reshard/base/hash.h"

namespace reshard {
namespace {

constexpr std::uint64_t kVersion = 1;  ///< of how pairs are cut into messages, and of Record.
constexpr Index kLeastStaging = Index{32} << 10;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;
constexpr std::array kPaths = {"automatic", "direct", "message"};
constexpr std::size_t kMaxReason = 400;

struct Record {
  std::uint64_t version = 0, digest = 0, path = 0, staging = 0, in_place = 0, direct = 0;
};

std::vector<std::byte> encode(const Record& r) {
  ByteWriter out;
  for (const std::uint64_t n : {r.version, r.digest, r.path, r.staging, r.in_place, r.direct})
    out.number(n);
  return std::move(out).finish();
}

Result<Record> decode(std::span<const std::byte> bytes, std::size_t rank) {
  ByteReader in(bytes, fmt::format("the refit agreement record from rank {}", rank));
  Record r;
  r.version = in.number(~std::uint64_t{0}, "version");
  if (in.ok() && r.version != kVersion)
    return fail(Code::invalid_argument,
                fmt::format("rank {} runs another version of reshard (refit protocol {}, here {})",
                            rank, r.version, kVersion));
  r.digest = in.number(~std::uint64_t{0}, "digest");
  r.path = in.number(kPaths.size() - 1, "path");
  r.staging = in.number(kMaxBytes, "staging bytes");
  r.in_place = in.number(kMaxBytes, "in-place bytes");
  r.direct = in.number(1, "direct");
  RESHARD_TRY(in.finish());
  return r;
}

Result<> compare(const Record& mine, int me, const Record& theirs, std::size_t r) {
  if (theirs.digest != mine.digest)
    return fail(Code::invalid_argument,
                fmt::format("rank {} has plan {} but rank {} has plan {}; all ranks must pass "
                            "equal models, layouts and options",
                            r, hex(theirs.digest), me, hex(mine.digest)));
  if (theirs.path != mine.path)
    return fail(Code::invalid_argument,
                fmt::format("rank {} asks for the path '{}' but rank {} for '{}'; all ranks must "
                            "ask for the same",
                            r, kPaths[theirs.path], me, kPaths[mine.path]));
  return {};
}

}  // namespace

Result<Agreed> agree(const Planner& planner, const RankRefitOptions& options, bool direct,
                     ControlPlane& control, Deadline deadline) {
  const auto most = static_cast<Index>(kMaxBytes);
  const Record mine{kVersion,
                    planner.digest(),
                    static_cast<std::uint64_t>(options.path),
                    static_cast<std::uint64_t>(std::clamp<Index>(options.staging_bytes, 0, most)),
                    static_cast<std::uint64_t>(std::clamp<Index>(options.in_place_bytes, 1, most)),
                    direct};
  const auto all = RESHARD_TRY(control.all_gather(encode(mine), deadline));
  Record common = mine;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Record theirs = RESHARD_TRY(decode(all[r], r));
    RESHARD_TRY(compare(mine, control.rank().value(), theirs, r));
    common.staging = std::min(common.staging, theirs.staging);
    common.in_place = std::max(common.in_place, theirs.in_place);
    common.direct |= theirs.direct;
  }
  Agreed out{options, common.direct != 0};
  out.options.staging_bytes = static_cast<Index>(common.staging);
  out.options.in_place_bytes = static_cast<Index>(common.in_place);
  if (out.options.staging_bytes < kLeastStaging)
    return fail(Code::invalid_argument,
                fmt::format("staging of {} bytes is too small; give every rank {} or more",
                            out.options.staging_bytes, kLeastStaging));
  const auto ranks = planner.ranks().members();
  if (!ranks.empty() && ranks.back().value() >= control.size())
    return fail(Code::invalid_argument,
                fmt::format("the plan needs rank {} but the group has {} ranks; start {} or more",
                            ranks.back().value(), control.size(), ranks.back().value() + 1));
  return out;
}

Result<std::string> agree_on_reason(const std::string& mine, ControlPlane& control,
                                    Deadline deadline) {
  const std::string text = mine.substr(0, kMaxReason);
  const auto all = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(text)), deadline));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    if (all[r].size() > kMaxReason)
      return fail(Code::corrupt,
                  fmt::format("the reason from rank {} has {} bytes, expected at most {}", r,
                              all[r].size(), kMaxReason));
    std::string theirs(all[r].size(), ' ');
    std::transform(all[r].begin(), all[r].end(), theirs.begin(),
                   [](std::byte b) { return static_cast<char>(b); });
    return fmt::format("rank {}: {}", r, theirs);
  }
  return std::string();
}

Result<Program> compile_in_rounds(const std::function<Result<Program>(int round_bits)>& compile,
                                  ControlPlane& control, Deadline deadline) {
  constexpr int kLargest = 63;  // A position has 64 bits.
  Program program = RESHARD_TRY(compile(kLargest));
  ByteWriter mine;
  mine.number(static_cast<std::uint64_t>(program.round_bits));
  const auto all = RESHARD_TRY(control.all_gather(std::move(mine).finish(), deadline));
  int common = program.round_bits;
  for (std::size_t r = 0; r < all.size(); ++r) {
    ByteReader in(all[r], fmt::format("the size of rounds of rank {}", r));
    common = std::min(common, static_cast<int>(in.number(kLargest, "round bits")));
    RESHARD_TRY(in.finish());
  }
  return common == program.round_bits ? std::move(program) : compile(common);
}

}  // namespace reshard
