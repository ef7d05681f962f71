// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/delta/comparison.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "reshard/base/hash.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/memory/worker_pool.h"

namespace reshard::delta {
namespace {

constexpr auto kBlock = static_cast<Index>(kDeltaBlockBytes);

Index block_bytes(const Part& part, std::size_t block) {
  return std::min(kBlock, part.bytes - static_cast<Index>(block) * kBlock);
}

std::span<const std::byte> data_of(const Parts::Place& place, Index at) {
  return place.part == nullptr ? std::span<const std::byte>()
                               : place.file->data(*place.part, at, kBlock);
}

void drop(const Parts::Place& place, Index at) {
  if (place.part != nullptr) place.file->drop(*place.part, at, kBlock);
}

}  // namespace

Comparison::Pair::Pair(Parts::Place b, Parts::Place n)
    : base(b), next(n), base_fingerprint(part().bytes), next_fingerprint(part().bytes) {
  if (next.part != nullptr) blocks.resize(static_cast<std::size_t>(num_delta_blocks(part().bytes)));
}

Comparison::Comparison(const Parts& base, const Parts& next, DeltaCodeStore& codes)
    : codes_(codes), is_one_file_(next.is_one_file()) {
  std::map<std::string_view, std::pair<const PartFile*, const PartFile*>> files;
  for (const PartFile& file : base.files()) files[file.name()].first = &file;
  for (const PartFile& file : next.files()) files[file.name()].second = &file;
  for (const auto& [name, sides] : files) {
    const auto& [before, after] = sides;
    std::map<std::string_view, const Part*> left;  // in the base alone
    if (before != nullptr)
      for (const Part& part : before->parts()) left.emplace(part.name, &part);
    if (after != nullptr)
      for (const Part& part : after->parts()) {
        const auto found = left.find(part.name);
        const bool same_size = found != left.end() && found->second->bytes == part.bytes;
        add(same_size ? Parts::Place{before, found->second} : Parts::Place{}, {after, &part});
        if (same_size) left.erase(found);
      }
    for (const auto& [removed, part] : left) add({before, part}, {});
  }
}

void Comparison::add(Parts::Place base, Parts::Place next) {
  Pair& pair = pairs_.emplace_back(base, next);
  for (Index block = 0; block < num_delta_blocks(pair.part().bytes); ++block)
    units_.push_back({&pair, static_cast<std::size_t>(block)});
  bytes_ += pair.part().bytes;
}

Result<> Comparison::compare(const Unit& unit, DeltaEncoder& encoder) {
  Pair& pair = *unit.pair;
  const Index at = static_cast<Index>(unit.block) * kBlock;
  const auto before = data_of(pair.base, at), after = data_of(pair.next, at);
  if (pair.base.part != nullptr) pair.base_fingerprint.add(at, before);
  if (pair.next.part != nullptr) {
    pair.next_fingerprint.add(at, after);
    const auto code = encoder.encode(before, after, pair.part().width);
    if (!code.empty()) {
      const std::string_view text(reinterpret_cast<const char*>(code.data()), code.size());
      pair.blocks[unit.block] = {static_cast<std::uint32_t>(code.size()), hash64(text),
                                 RESHARD_TRY(codes_.append(code))};
    }
  }
  drop(pair.base, at);
  drop(pair.next, at);
  return {};
}

Result<> Comparison::run(int threads, const Progress& progress) {
  WorkerPool pool(threads);
  ProgressMeter meter("compare", bytes_, progress);
  std::atomic<std::size_t> next{0};
  auto body = [&](int worker) {
    DeltaEncoder encoder;
    for (std::size_t i = next++; i < units_.size(); i = next++) {
      if (auto done = compare(units_[i], encoder); !done) meter.fail_with(std::move(done).error());
      if (!meter.add(worker, block_bytes(units_[i].pair->part(), units_[i].block))) break;
    }
  };
  pool.run(body);
  return meter.finish();
}

DeltaIndex Comparison::index() const {
  DeltaIndex index{is_one_file_, {}};
  for (const Pair& pair : pairs_) {
    DeltaPart part{.file = pair.file().name(),
                   .name = pair.part().name,
                   .width = pair.part().width,
                   .bytes = pair.part().bytes};
    if (pair.base.part != nullptr) part.base = pair.base_fingerprint.value();
    if (pair.next.part != nullptr) part.result = pair.next_fingerprint.value();
    const bool changes =
        std::ranges::any_of(pair.blocks, [](const DeltaBlock& b) { return b.bytes > 0; });
    part.state = pair.next.part == nullptr   ? PartState::removed
                 : pair.base.part == nullptr ? PartState::added
                 : changes                   ? PartState::changed
                                             : PartState::unchanged;
    if (part.has_codes()) part.blocks = pair.blocks;
    index.parts.push_back(std::move(part));
  }
  return index;
}

}  // namespace reshard::delta
