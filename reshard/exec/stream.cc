// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>

#include "reshard/exec/host/program_executor.h"
#include "reshard/layout/clip.h"
#include "reshard/program/compile_file.h"

namespace reshard {
namespace {

/// The addresses of a program's sources, by buffer; null for other buffers.
using SourcePlaces = std::vector<const std::byte*>;

/// Calls visit(memory, wanted) for each range of a source that a tile reads; `wanted` of its bytes
/// are used.
template <class Visit>
void for_each_source(const Program& program, const SourcePlaces& places, StepId tile,
                     const Visit& visit) {
  const auto add = [&](BufferId id, Index offset, Index bytes, Index wanted) {
    if (const std::byte* at = places[id.index()]; at != nullptr && bytes > 0)
      visit(std::span(at + offset, static_cast<std::size_t>(bytes)), wanted);
  };
  for (const ProgramOp& op : program.ops_of(program.steps[tile.index()])) {
    if (op.kind == ProgramOp::Kind::copy || op.kind == ProgramOp::Kind::put)
      for (const ProgramPiece& piece : program.pieces_of(op)) {
        const Interval read = source_span(piece.copy);
        add(piece.src, read.begin(), read.size(), piece.copy.bytes());
      }
    for (auto i = op.first; op.kind == ProgramOp::Kind::dequantise && i < op.end; ++i) {
      const ProgramMatrix& m = program.matrices[i];
      const Index row = m.cols * bits(m.format.data) / 8;
      const Index bytes = (m.end - m.begin - 1) * m.data_row + row;
      add(m.data.buffer, m.data.offset, bytes, (m.end - m.begin) * row);
    }
  }
}

/// Ranges of memory, which are handed on as few.
class Ranges {
 public:
  void add(std::span<const std::byte> range) {
    bytes_ += range.size();
    if (!ranges_.empty() && ranges_.back().data() + ranges_.back().size() == range.data())
      ranges_.back() = {ranges_.back().data(), ranges_.back().size() + range.size()};
    else
      ranges_.push_back(range);
  }
  std::size_t bytes() const { return bytes_; }

  /// Calls hint with each run of ranges that overlap or follow one another.
  void tell(const StreamHint& hint) && {
    std::ranges::sort(ranges_, std::less<>(), [](const auto& range) { return range.data(); });
    for (std::size_t i = 0; i < ranges_.size();) {
      const std::byte* const begin = ranges_[i].data();
      const std::byte* end = begin;
      for (; i < ranges_.size() && (end == begin || ranges_[i].data() <= end); ++i)
        end = std::max(end, ranges_[i].data() + ranges_[i].size());
      hint({begin, end});
    }
  }

 private:
  std::vector<std::span<const std::byte>> ranges_;
  std::size_t bytes_ = 0;
};

/// Tells the reader of files what tiles will read, and what they have read.
class ReadHints {
 public:
  ReadHints(const Program& program, const SourcePlaces& places, const StreamOptions& options)
      : program_(program), places_(places), ahead_(options.ahead), done_(options.done) {}

  void operator()(StepId tile, bool is_done) {
    if (is_done && done_) read(tile);
    if (!is_done && ahead_) announce(tile.index());
  }

  /// After the last tile.
  void finish() {
    if (done_) std::exchange(read_, {}).tell(done_);
  }

 private:
  static constexpr std::size_t kTilesAhead = 8, kTogether = std::size_t{1} << 20;
  /// Ranges of which less than one byte in so many is read are not fetched as a whole.
  static constexpr Index kMaxSparse = 8;

  void read(StepId tile) {
    std::unique_lock lock(read_mutex_);
    for_each_source(program_, places_, tile, [&](auto range, Index) { read_.add(range); });
    if (read_.bytes() < kTogether) return;
    Ranges all = std::exchange(read_, {});
    lock.unlock();
    std::move(all).tell(done_);
  }

  /// Announces what follows if only the last tiles, or the last bytes, of what was announced are
  /// not begun.
  void announce(std::size_t tile) {
    std::unique_lock lock(ahead_mutex_, std::try_to_lock);
    if (!lock || announced_ == program_.steps.size()) return;
    if (announced_ > tile + kTilesAhead && tile < renew_at_) return;
    Ranges next;
    const std::size_t begin = announced_;
    do {
      for_each_source(program_, places_, StepId(static_cast<std::uint32_t>(announced_)),
                      [&](std::span<const std::byte> range, Index wanted) {
                        if (static_cast<Index>(range.size()) <= kMaxSparse * wanted)
                          next.add(range);
                      });
      ++announced_;
    } while (announced_ < program_.steps.size() &&
             (announced_ <= tile + kTilesAhead || next.bytes() < kTogether));
    renew_at_ = begin;
    lock.unlock();
    std::move(next).tell(ahead_);
  }

  const Program& program_;
  const SourcePlaces& places_;
  const StreamHint &ahead_, &done_;
  std::mutex read_mutex_, ahead_mutex_;
  Ranges read_;
  std::size_t announced_ = 0, renew_at_ = 0;  ///< tiles.
};

}  // namespace

Result<> stream_rank(const Planner& planner, const RankBuffers& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink,
                     const StreamOptions& options) {
  const StreamSource lent = [&](Rank r, SlotId slot) -> Result<std::shared_ptr<const std::byte>> {
    const std::byte* at = source.at(r, slot);
    if (at == nullptr)
      return fail(Code::invalid_argument,
                  fmt::format("source buffer of local tensor '{}' on rank {} is not set",
                              source.layout().slot(slot).name, r.value()));
    return std::shared_ptr<const std::byte>(std::shared_ptr<void>(), at);
  };
  return stream_rank(planner, lent, dst, slots, sink, options);
}

Result<> stream_rank(const Planner& planner, const StreamSource& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink,
                     const StreamOptions& options) {
  constexpr Index kPage = 4096, kMaxBlock = Index{8} << 20, kMaxUnit = Index{512} << 10;
  WorkerPool pool(options.threads);
  // Blocks of whole pages, so that writes begin at page boundaries of the tensor.
  const Index block =
      std::clamp<Index>(options.buffer_bytes / pool.size() / kPage * kPage, kPage, kMaxBlock);
  const auto program = std::make_shared<const Program>(RESHARD_TRY(compile_file(
      planner, dst, slots, {options.from, options.into, block, std::min(block, kMaxUnit)})));
  HostBuffer staging = RESHARD_TRY(HostBuffer::allocate(program->staging_bytes));
  std::vector<std::shared_ptr<const std::byte>> sources;
  SourcePlaces places(program->buffers.size());
  const auto place = [&](const ProgramBuffer& buffer) -> Result<host::BufferPlace> {
    sources.push_back(RESHARD_TRY(source(buffer.rank, buffer.slot)));
    places[static_cast<std::size_t>(&buffer - program->buffers.data())] = sources.back().get();
    return host::BufferPlace{const_cast<std::byte*>(sources.back().get()), nullptr, 0};
  };
  const host::PutSink puts = [&](const ProgramBuffer& target, Index offset,
                                 std::span<const std::byte> bytes) {
    return sink(dst, target.slot, offset, bytes);
  };
  auto executor = RESHARD_TRY(host::ProgramExecutor::make(
      program, {.pool = &pool, .staging = staging.bytes(), .puts = &puts}, place));
  ReadHints hints(*program, places, options);
  if (options.done || options.ahead)
    executor->on_tile([&](StepId tile, bool is_done) { hints(tile, is_done); });
  ProgressMeter meter("write", program->bytes(), options.progress);
  RESHARD_TRY(executor->run(Deadline::never(), meter));
  hints.finish();
  return {};
}

}  // namespace reshard
