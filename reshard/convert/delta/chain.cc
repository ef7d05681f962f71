// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/delta/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/base/hash.h"

namespace reshard::delta {
namespace {

/// The parts that a delta leaves, by file and name.
using PartName = std::pair<std::string_view, std::string_view>;
using Results = std::map<PartName, const DeltaPart*>;

Results results_of(const DeltaFile& delta) {
  Results results;
  for (const DeltaPart& part : delta.index().parts)
    if (part.in_result()) results.emplace(PartName(part.file, part.name), &part);
  return results;
}

tl::unexpected<Error> other_base(const Parts& base, const DeltaFile& delta, const DeltaPart& part,
                                 const std::string& why) {
  return fail(Code::invalid_argument,
              fmt::format("{}: is not the checkpoint that {} changes: {} {}", base.path(),
                          delta.path(), describe_part(part.file, part.name), why));
}

Result<> find_source(const Parts& base, const DeltaFile& first, PartChain& chain) {
  const DeltaPart& part = *chain.base;
  chain.source = base.find(part.file, part.name);
  if (chain.source.part == nullptr) return other_base(base, first, part, "is missing");
  if (chain.source.part->bytes != part.bytes)
    return other_base(
        base, first, part,
        fmt::format("has {} bytes, must have {}", chain.source.part->bytes, part.bytes));
  return {};
}

}  // namespace

Result<std::vector<DeltaFile>> open_chain(const std::vector<std::string>& paths) {
  if (paths.empty()) return fail(Code::invalid_argument, "no deltas to apply");
  std::vector<DeltaFile> deltas;
  for (const std::string& path : paths) {
    deltas.push_back(RESHARD_TRY(DeltaFile::open(path)));
    if (deltas.size() == 1) continue;
    const DeltaLink &last = deltas[deltas.size() - 2].link(), &link = deltas.back().link();
    if (link.base != last.result)
      return fail(Code::invalid_argument,
                  fmt::format("{}: begins at checkpoint {} (step {}), but {} before it ends at {} "
                              "(step {})",
                              path, hex(link.base), link.step, deltas[deltas.size() - 2].path(),
                              hex(last.result), last.step));
    if (link.anchor != last.anchor || link.step != last.step + 1)
      return fail(Code::invalid_argument,
                  fmt::format("{}: is step {} of the chain from {}, but {} before it is step {} of "
                              "that from {}",
                              path, link.step, hex(link.anchor), deltas[deltas.size() - 2].path(),
                              last.step, hex(last.anchor)));
  }
  return deltas;
}

Result<std::vector<PartChain>> chains_of(const Parts& base, std::span<const DeltaFile> deltas) {
  std::vector<Results> results;
  for (const DeltaFile& delta : deltas) results.push_back(results_of(delta));
  std::vector<PartChain> chains;
  Result<> of_header;  // told only if no tensor differs, which says more
  for (const DeltaPart& last : deltas.back().index().parts) {
    if (!last.in_result()) continue;
    PartChain chain{.result = &last, .base = nullptr, .source = {}, .steps = {}};
    const DeltaPart* part = &last;
    for (std::size_t d = deltas.size(); d-- > 0;) {
      const auto found = results[d].find({last.file, last.name});
      // Fingerprints of checkpoints agree, so this is nobody's mistake.
      if (found == results[d].end() || found->second->bytes != last.bytes)
        return fail(Code::corrupt,
                    fmt::format("{}: does not leave {} as the next delta has it", deltas[d].path(),
                                describe_part(last.file, last.name)));
      part = found->second;
      if (part->has_codes()) chain.steps.push_back({&deltas[d], part});
      if (!part->in_base()) break;
    }
    std::ranges::reverse(chain.steps);
    if (part->in_base()) {
      chain.base = part;
      auto found = find_source(base, deltas.front(), chain);
      if (!found && !last.name.empty()) return tl::unexpected(std::move(found).error());
      if (!found && of_header) of_header = std::move(found);
    }
    chains.push_back(std::move(chain));
  }
  RESHARD_TRY(std::move(of_header));
  return chains;
}

}  // namespace reshard::delta
