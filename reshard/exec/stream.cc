// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "reshard/exec/host/program_executor.h"
#include "reshard/layout/clip.h"
#include "reshard/program/compile_file.h"

namespace reshard {
namespace {

/// Calls visit(rank, slot, offset, bytes, wanted) for each range of a source that a tile reads;
/// `wanted` of its bytes are used.
template <class Visit>
void for_each_source(const Program& program, StepId tile, const Visit& visit) {
  const auto add = [&](BufferId id, Index offset, Index bytes, Index wanted) {
    const ProgramBuffer& buffer = program.buffers[id.index()];
    if (buffer.kind == ProgramBuffer::Kind::source)
      visit(buffer.rank, buffer.slot, offset, bytes, wanted);
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

/// Tells the reader of files what tiles will read, and what they have read.
class ReadHints {
 public:
  ReadHints(const Program& program, const StreamDone& done, const StreamAhead& ahead)
      : program_(program), done_(done), ahead_(ahead) {}

  void operator()(StepId tile, bool is_done) {
    if (is_done && done_)
      for_each_source(program_, tile, [&](Rank r, SlotId slot, Index offset, Index bytes, Index) {
        done_(r, slot, offset, bytes);
      });
    const std::size_t end = std::min(program_.steps.size(), tile.index() + kTilesAhead);
    while (!is_done && ahead_ && announced_ < end)
      if (const std::size_t next = announced_++; next < end)
        announce(StepId(static_cast<std::uint32_t>(next)));
  }

 private:
  static constexpr std::size_t kTilesAhead = 8;
  /// Ranges of which less than one byte in so many is read are not fetched as a whole.
  static constexpr Index kMaxSparse = 8;

  void announce(StepId tile) {
    for_each_source(program_, tile,
                    [&](Rank r, SlotId slot, Index offset, Index bytes, Index wanted) {
                      if (bytes <= kMaxSparse * wanted) ahead_(r, slot, offset, bytes);
                    });
  }

  const Program& program_;
  const StreamDone& done_;
  const StreamAhead& ahead_;
  std::atomic<std::size_t> announced_{0};
};

}  // namespace

Result<> stream_rank(const Planner& planner, const RankBuffers& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink, const StreamDone& done,
                     const StreamOptions& options) {
  const StreamSource lent = [&](Rank r, SlotId slot) -> Result<std::shared_ptr<const std::byte>> {
    const std::byte* at = source.at(r, slot);
    if (at == nullptr)
      return fail(Code::invalid_argument,
                  fmt::format("source buffer of local tensor '{}' on rank {} is not set",
                              source.layout().slot(slot).name, r.value()));
    return std::shared_ptr<const std::byte>(std::shared_ptr<void>(), at);
  };
  return stream_rank(planner, lent, dst, slots, sink, done, options);
}

Result<> stream_rank(const Planner& planner, const StreamSource& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink, const StreamDone& done,
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
  const auto place = [&](const ProgramBuffer& buffer) -> Result<host::BufferPlace> {
    sources.push_back(RESHARD_TRY(source(buffer.rank, buffer.slot)));
    return host::BufferPlace{const_cast<std::byte*>(sources.back().get()), nullptr, 0};
  };
  const host::PutSink puts = [&](const ProgramBuffer& target, Index offset,
                                 std::span<const std::byte> bytes) {
    return sink(dst, target.slot, offset, bytes);
  };
  auto executor = RESHARD_TRY(host::ProgramExecutor::make(
      program, {.pool = &pool, .staging = staging.bytes(), .puts = &puts}, place));
  ReadHints hints(*program, done, options.ahead);
  if (done || options.ahead)
    executor->on_tile([&](StepId tile, bool is_done) { hints(tile, is_done); });
  ProgressMeter meter("write", program->bytes(), options.progress);
  return executor->run(Deadline::never(), meter);
}

}  // namespace reshard
