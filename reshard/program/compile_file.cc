// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/compile_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "reshard/layout/clip.h"
#include "reshard/plan/moves.h"
#include "reshard/program/builder.h"
#include "reshard/program/converted/converted_moves.h"

namespace reshard {

using converted::ConvertedSide;
using program::Builder;

namespace {

using Kind = ProgramBuffer::Kind;

class FileCompiler {
 public:
  FileCompiler(const Planner& planner, Rank dst, std::span<const SlotId> slots,
               const FileOptions& options)
      : planner_(planner),
        dst_(dst),
        slots_(slots),
        options_(options),
        out_(dst, planner.digest()) {}

  Result<Program> run();

 private:
  /// A slot of the plan's target that is written as it is.
  struct Plain {
    SlotId planned, written;
  };

  BufferId source(Rank r, SlotId stored) {
    const ModelLayout& layout =
        options_.from != nullptr ? *options_.from->stored : planner_.source();
    return out_.tensor(Kind::source, r, stored, bytes_of_local(layout, r, stored));
  }
  /// True if the move's source is dequantised; otherwise plain_source() has it.
  bool is_made(const Move& m) const {
    return std::ranges::binary_search(before_.slots, m.src_slot);
  }
  BufferId plain_source(const Move& m) {
    const SlotId slot = m.src_slot;
    return source(m.src, options_.from != nullptr ? options_.from->plain[slot.index()] : slot);
  }
  BufferId target(SlotId stored) {
    const ModelLayout& layout =
        options_.into != nullptr ? *options_.into->stored : planner_.target();
    return out_.tensor(Kind::target, dst_, stored, bytes_of_local(layout, dst_, stored), false);
  }
  bool is_written(SlotId stored) const { return std::ranges::find(slots_, stored) != slots_.end(); }

  Result<> find_moves(const std::vector<Plain>& plain);
  Result<> find_sources();
  Result<std::vector<Plain>> find_targets();
  void gather(std::span<const Move> moves, Index wanted, Index spread);
  void gather_unit(std::size_t unit) {
    gather(moves_of(unit), units_->wanted_bytes(unit), units_->planned_bytes(unit));
  }
  void add_blocks(const Plain& slot);
  void add_block(BufferId into, Interval bytes, std::span<const Move> moves);
  void add_units();
  void add_amax(const std::vector<std::size_t>& units, Place amax, std::vector<StepId>& found);
  void add_unit(std::size_t unit, Place amax, const std::vector<StepId>& waits);
  Index put_rows(const PartRows& rows, Index at);
  void put_padding();
  std::span<const Move> moves_of(std::size_t unit) const {
    const auto found = by_unit_.find(unit);
    return found == by_unit_.end() ? std::span<const Move>() : found->second;
  }

  const Planner& planner_;
  Rank dst_;
  std::span<const SlotId> slots_;
  const FileOptions& options_;
  Builder out_;
  std::vector<Move> moves_;  ///< by destination.
  SideConversion before_, after_;
  std::map<Rank, ConvertedSide> made_;  ///< by source rank.
  std::optional<ConvertedSide> units_;  ///< of the target.
  ConvertedSide::Cut by_unit_;
  std::map<SlotId, std::vector<Interval>> put_;  ///< bytes of data and scales.
  Index produced_at_ = 0, written_at_ = 0;       ///< in scratch, after what is gathered.
  Index staging_ = 0, padding_ = 0;
};

/// The value slots of the pairs that are wanted, ascending.
std::vector<SlotId> values_of(const QuantisedLayout& layout, auto&& wanted) {
  std::vector<SlotId> out;
  for (const QuantisedLayout::Pair& pair : layout.pairs)
    if (wanted(pair)) out.push_back(pair.values);
  return out;
}

/// Finds the moves that reach the wanted local tensors. @pre find_targets()
Result<> FileCompiler::find_moves(const std::vector<Plain>& plain) {
  std::vector<SlotId> planned = after_.slots;
  for (const Plain& slot : plain) planned.push_back(slot.planned);
  std::ranges::sort(planned);
  std::vector<Transfer> deliveries;
  planner_.for_each_delivery(dst_, [&](const Transfer& t) { deliveries.push_back(t); });
  moves_ = RESHARD_TRY(copy_ops(planner_, deliveries));
  std::erase_if(moves_,
                [&](const Move& m) { return !std::ranges::binary_search(planned, m.dst_slot); });
  std::ranges::stable_sort(moves_, {},
                           [](const Move& m) { return std::pair(m.dst_slot, m.copy.dst_offset); });
  return {};
}

/// The source's local tensors that are dequantised.
Result<> FileCompiler::find_sources() {
  if (options_.from == nullptr) return {};
  std::vector<SlotId> read;
  for (const Move& m : moves_) read.push_back(m.src_slot);
  std::ranges::sort(read);
  before_ = {options_.from, {}, false};
  before_.slots = values_of(*options_.from, [&](const QuantisedLayout::Pair& pair) {
    return std::ranges::binary_search(read, pair.values);
  });
  for (const Move& m : moves_)
    if (is_made(m) && !made_.contains(m.src))
      made_.emplace(m.src,
                    RESHARD_TRY(ConvertedSide::make(before_, false, m.src, options_.unit_bytes)));
  return {};
}

Result<std::vector<FileCompiler::Plain>> FileCompiler::find_targets() {
  std::vector<Plain> plain;
  if (options_.into == nullptr) {
    for (const SlotId slot : slots_) plain.push_back({slot, slot});
    return plain;
  }
  const QuantisedLayout& into = *options_.into;
  std::map<SlotId, SlotId> planned;
  for (std::size_t v = 0; v < into.plain.size(); ++v)
    planned.emplace(into.plain[v], static_cast<SlotId::rep>(v));
  for (const SlotId slot : slots_)
    if (const auto found = planned.find(slot); found != planned.end())
      plain.push_back({found->second, slot});
  after_ = {&into, {}, true};
  after_.slots = values_of(into, [&](const QuantisedLayout::Pair& pair) {
    return is_written(pair.data) || is_written(pair.scales) || is_written(pair.factor);
  });
  for (const QuantisedLayout::Pair& pair : into.pairs)
    if (!pair.whole && std::ranges::binary_search(after_.slots, pair.values))
      return fail(
          Code::unsupported,
          fmt::format("{}: '{}' cannot be quantised, because shards cut its blocks; convert "
                      "to hf:quant=... first and shard that, or use quant_grid=local",
                      into.stored->name(), into.values->slot(pair.values).name));
  return plain;
}

/// Appends the ops that write the moves' bytes into the first `spread` bytes of scratch, of which
/// `wanted` are read: zeros, where no move writes.
void FileCompiler::gather(std::span<const Move> moves, Index wanted, Index spread) {
  Index bytes = 0;
  for (const Move& m : moves) bytes += m.copy.bytes();
  if (bytes < wanted) out_.clear({{Builder::kScratch, 0}, spread});
  std::map<Rank, std::vector<Move>> made;
  for (const Move& m : moves) {
    if (is_made(m)) {
      made[m.src].push_back(m);
      continue;
    }
    out_.copy({m.copy, plain_source(m), Builder::kScratch, m.conversion}, false);
  }
  for (const auto& [src, theirs] : made) {
    const ConvertedSide& rows = made_.at(src);
    for (const auto& [unit, parts] : rows.cut(theirs)) {
      out_.convert(rows.kind(), rows.matrix(unit, {Builder::kScratch, produced_at_}, {},
                                            [&, r = src](const PartRows& part) -> Place {
                                              return {source(r, part.slot), part.offset};
                                            }));
      for (const Move& m : parts) {
        StridedCopy copy = m.copy;
        copy.src_offset += produced_at_;
        out_.copy({copy, Builder::kScratch, Builder::kScratch, m.conversion}, false);
      }
    }
  }
}

/// Bytes of a plain local tensor. A single run of memory is put from where it is.
void FileCompiler::add_block(BufferId into, Interval bytes, std::span<const Move> moves) {
  std::vector<Move> parts;
  std::vector<StridedCopy> clipped;
  for (const Move& m : moves) {
    clipped.clear();
    clip_destination(m.copy, bytes.begin(), bytes.end(), clipped);
    for (StridedCopy& copy : clipped) {
      copy.dst_offset -= bytes.begin();
      Move part = m;
      part.copy = copy;
      parts.push_back(part);
    }
  }
  StridedCopy whole;
  whole.dst_offset = bytes.begin();
  whole.run_bytes = bytes.size();
  const Move* const only = parts.size() == 1 ? &parts[0] : nullptr;
  if (only != nullptr && only->copy.num_loops == 0 && only->copy.run_bytes == bytes.size() &&
      !only->conversion.converts() && !is_made(*only)) {
    whole.src_offset = only->copy.src_offset;
    out_.put({whole, plain_source(*only), into, {}});
  } else {
    gather(parts, bytes.size(), bytes.size());
    out_.put({whole, Builder::kScratch, into, {}});
  }
  out_.tile(bytes.size(), bytes.size(), {});
}

void FileCompiler::add_blocks(const Plain& slot) {
  const Index total = bytes_of_local(planner_.target(), dst_, slot.planned);
  const auto mine = std::ranges::equal_range(moves_, slot.planned, {}, &Move::dst_slot);
  auto from = mine.begin();
  for (Index begin = 0; begin < total; begin += options_.block_bytes) {
    const Index end = std::min(total, begin + options_.block_bytes);
    while (from < mine.end() && destination_span(from->copy).end() <= begin) ++from;
    auto to = from;
    while (to < mine.end() && to->copy.dst_offset < end) ++to;
    add_block(target(slot.written), Interval(begin, end), {from, to});
  }
}

/// The tiles that find the amax of a matrix.
void FileCompiler::add_amax(const std::vector<std::size_t>& units, Place amax,
                            std::vector<StepId>& found) {
  const Index floats = amax.offset + 4;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const Place to{Builder::kStaging, floats + static_cast<Index>(i) * 4};
    gather_unit(units[i]);
    out_.convert(ProgramOp::Kind::amax, units_->matrix(units[i], {Builder::kScratch, 0}, to,
                                                       [](const PartRows&) { return Place{}; }));
    found.push_back(out_.tile(0, 0, {}));
  }
  out_.max({{Builder::kStaging, floats}, static_cast<Index>(units.size()), amax});
  found = {out_.tile(0, 0, std::move(found))};
}

/// Appends the op that puts rows from this offset of scratch. Returns their bytes.
Index FileCompiler::put_rows(const PartRows& rows, Index at) {
  if (rows.bytes == 0 || !is_written(rows.slot)) return 0;
  auto& done = put_[rows.slot];
  // All units of a matrix have its factor, or its only scale.
  if (!done.empty() && rows.bytes == rows.row && done.back().begin() == rows.offset) return 0;
  StridedCopy copy;
  copy.src_offset = at;
  copy.dst_offset = rows.offset;
  copy.run_bytes = rows.row == rows.stride ? rows.bytes : rows.row;
  const Index count = (rows.bytes - copy.run_bytes) / std::max<Index>(rows.stride, 1) + 1;
  for (Index i = 0; i < count; ++i) {
    const Index begin = rows.offset + i * rows.stride;
    done.emplace_back(begin, begin + copy.run_bytes);
  }
  if (count > 1) {
    copy.num_loops = 1;
    copy.loops[0] = {count, rows.stride, rows.stride};
  }
  out_.put({copy, Builder::kScratch, target(rows.slot), {}});
  return copy.bytes();
}

void FileCompiler::add_unit(std::size_t unit, Place amax, const std::vector<StepId>& waits) {
  gather_unit(unit);
  std::vector<std::pair<PartRows, Index>> parts;  ///< of the data and scales, in scratch.
  Index end = written_at_;
  const ProgramMatrix matrix =
      units_->matrix(unit, {Builder::kScratch, 0}, amax, [&](const PartRows& rows) -> Place {
        parts.emplace_back(rows, end);
        end += whole_lines(rows.bytes);
        return {Builder::kScratch, parts.back().second};
      });
  // Scales may have padding that no kernel writes.
  if (parts.size() > 1) out_.clear({{Builder::kScratch, parts[1].second}, end - parts[1].second});
  out_.convert(units_->kind(), matrix);
  Index bytes = 0;
  for (const auto& [rows, at] : parts) bytes += put_rows(rows, at);
  out_.tile(bytes, bytes, waits);
}

/// Puts zeros where a local tensor of data or scales has no matrix.
void FileCompiler::put_padding() {
  for (const QuantisedLayout::Pair& pair : options_.into->pairs)
    for (const SlotId slot : {pair.data, pair.scales, pair.factor}) {
      if (slot.value() < 0 || !is_written(slot)) continue;
      auto& done = put_[slot];
      const Index total = bytes_of_local(*options_.into->stored, dst_, slot);
      done.emplace_back(total, total);
      std::ranges::sort(done, {}, &Interval::begin);
      Index at = 0;
      for (const Interval& range : done) {
        for (Index n = 0; at < range.begin(); at += n) {
          n = std::min(options_.block_bytes, range.begin() - at);
          StridedCopy copy;
          copy.dst_offset = at;
          copy.run_bytes = n;
          padding_ = std::max(padding_, n);
          out_.clear({{Builder::kScratch, 0}, n});
          out_.put({copy, Builder::kScratch, target(slot), {}});
          out_.tile(n, n, {});
        }
        at = std::max(at, range.end());
      }
    }
}

void FileCompiler::add_units() {
  for (std::size_t first = 0, end = 0; first < units_->size(); first = end) {
    std::vector<std::size_t> units;
    for (end = first; end < units_->size() && units_->matrix_of(end) == units_->matrix_of(first);)
      units.push_back(end++);
    Place amax;
    std::vector<StepId> found;
    if (units_->needs_amax()) {
      amax = {Builder::kStaging, staging_};
      staging_ += whole_lines(static_cast<Index>(units.size() + 1) * 4);
      add_amax(units, amax, found);
    }
    for (const std::size_t unit : units) add_unit(unit, amax, found);
  }
}

Result<Program> FileCompiler::run() {
  const std::vector<Plain> plain = RESHARD_TRY(find_targets());
  RESHARD_TRY(find_moves(plain));
  RESHARD_TRY(find_sources());
  Index gathered = plain.empty() ? 0 : options_.block_bytes, produced = 0, written = 0;
  if (!after_.slots.empty()) {
    units_ = RESHARD_TRY(ConvertedSide::make(after_, true, dst_, options_.unit_bytes));
    std::vector<Move> into_units;
    for (const Move& m : moves_)
      if (std::ranges::binary_search(after_.slots, m.dst_slot)) into_units.push_back(m);
    by_unit_ = units_->cut(into_units);
    for (std::size_t u = 0; u < units_->size(); ++u) {
      gathered = std::max(gathered, units_->planned_bytes(u));
      written = std::max(written, units_->spread_bytes(u));
    }
  }
  for (const auto& [src, rows] : made_)
    for (std::size_t u = 0; u < rows.size(); ++u)
      produced = std::max(produced, rows.planned_bytes(u));
  produced_at_ = whole_lines(gathered);
  written_at_ = produced_at_ + whole_lines(produced);
  for (const Plain& slot : plain) add_blocks(slot);
  if (units_) add_units();
  if (options_.into != nullptr) put_padding();
  return std::move(out_).finish(staging_, std::max(written_at_ + whole_lines(written), padding_));
}

}  // namespace

Result<Program> compile_file(const Planner& planner, Rank dst, std::span<const SlotId> slots,
                             const FileOptions& options) {
  return FileCompiler(planner, dst, slots, options).run();
}

}  // namespace reshard
