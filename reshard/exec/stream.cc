// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "reshard/exec/progress_meter.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/layout/clip.h"
#include "reshard/plan/moves.h"
#include "reshard/transform/copy.h"

namespace reshard {
namespace {

/// A range of bytes of one destination tensor, produced by one worker.
struct Block {
  SlotId slot;
  Index begin = 0, end = 0;
  std::size_t first_move = 0, last_move = 0;  ///< the slot's moves, sorted by destination.
};

class Streamer {
 public:
  Streamer(const Planner& planner, const StreamSource& source, Rank dst, const StreamSink& sink,
           const StreamDone& done)
      : planner_(planner), source_(source), dst_(dst), sink_(sink), done_(done) {}

  Result<> prepare(std::span<const SlotId> slots, Index block_bytes) {
    std::vector<Transfer> deliveries;
    planner_.for_each_delivery(dst_, [&](const Transfer& t) { deliveries.push_back(t); });
    moves_ = RESHARD_TRY(copy_ops(planner_, deliveries));
    std::stable_sort(moves_.begin(), moves_.end(), [](const Move& a, const Move& b) {
      return std::pair(a.dst_slot, a.copy.dst_offset) < std::pair(b.dst_slot, b.copy.dst_offset);
    });
    for (SlotId slot : slots) add_blocks(slot, block_bytes);
    return {};
  }

  const std::vector<Block>& blocks() const { return blocks_; }

  Result<> make(const Block& block, std::span<std::byte> buffer) const {
    std::vector<StridedCopy> parts;
    std::vector<CopyTask> tasks;
    std::vector<std::shared_ptr<const std::byte>> sources;
    Index covered = 0;
    const auto bytes = buffer.first(static_cast<std::size_t>(block.end - block.begin));
    for (std::size_t i = block.first_move; i < block.last_move; ++i) {
      const Move& m = moves_[i];
      parts.clear();
      clip_destination(m.copy, block.begin, block.end, parts);
      if (!parts.empty()) sources.push_back(RESHARD_TRY(source_(m.src, m.src_slot)));
      for (StridedCopy& part : parts) {
        part.dst_offset -= block.begin;
        covered += part.bytes();
        tasks.push_back({part, sources.back().get(), bytes.data(), m.conversion});
      }
    }
    // A single contiguous run of a source needs no copy.
    if (tasks.size() == 1 && tasks[0].copy.num_loops == 0 && !tasks[0].conversion.converts() &&
        covered == block.end - block.begin) {
      RESHARD_TRY(sink_(dst_, block.slot, block.begin,
                        {tasks[0].src + tasks[0].copy.src_offset, bytes.size()}));
    } else {
      if (covered != block.end - block.begin) std::memset(bytes.data(), 0, bytes.size());
      run_copies(tasks, CopyHint::cached);
      RESHARD_TRY(sink_(dst_, block.slot, block.begin, bytes));
    }
    if (done_)
      for_each_source(block, [&](const Move& m, const StridedCopy& part) {
        const Interval read = source_span(part);
        done_(m.src, m.src_slot, read.begin(), read.size());
      });
    return {};
  }

  /// Says which bytes of sources a block will read.
  void announce(const Block& block, const StreamAhead& ahead) const {
    for_each_source(block, [&](const Move& m, const StridedCopy& part) {
      const Interval read = source_span(part);
      if (read.size() <= kMostSparse * part.bytes())
        ahead(m.src, m.src_slot, read.begin(), read.size());
    });
  }

 private:
  /// Pieces of which less than one byte in so many is read are not fetched as a whole.
  static constexpr Index kMostSparse = 8;

  /// Calls visit(move, part) for what a block reads.
  template <class Visit>
  void for_each_source(const Block& block, const Visit& visit) const {
    std::vector<StridedCopy> parts;
    for (std::size_t i = block.first_move; i < block.last_move; ++i) {
      parts.clear();
      clip_destination(moves_[i].copy, block.begin, block.end, parts);
      for (const StridedCopy& part : parts) visit(moves_[i], part);
    }
  }

  void add_blocks(SlotId slot, Index block_bytes) {
    const Index total = volume(planner_.target().local_shape(slot, dst_)) *
                        bits(planner_.target().slot(slot).dtype) / 8;
    const auto of_slot = std::equal_range(moves_.begin(), moves_.end(), slot, Less{});
    auto from = static_cast<std::size_t>(of_slot.first - moves_.begin());
    const auto last = static_cast<std::size_t>(of_slot.second - moves_.begin());
    // Blocks of whole 4 KiB pages, so that writes begin at page boundaries of the tensor.
    for (Index begin = 0; begin < total; begin += block_bytes) {
      const Index end = std::min(total, begin + block_bytes);
      while (from < last && destination_span(moves_[from].copy).end() <= begin) ++from;
      std::size_t to = from;
      while (to < last && moves_[to].copy.dst_offset < end) ++to;
      blocks_.push_back({slot, begin, end, from, to});
    }
  }

  struct Less {
    bool operator()(const Move& m, SlotId s) const { return m.dst_slot < s; }
    bool operator()(SlotId s, const Move& m) const { return s < m.dst_slot; }
  };

  const Planner& planner_;
  const StreamSource& source_;
  Rank dst_;
  const StreamSink& sink_;
  const StreamDone& done_;
  std::vector<Move> moves_;
  std::vector<Block> blocks_;
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
  constexpr Index kPage = 4096, kMostBlock = Index{8} << 20;
  constexpr std::size_t kBlocksAhead = 8;
  WorkerPool pool(options.threads);
  const Index block_bytes =
      std::clamp<Index>(options.buffer_bytes / pool.size() / kPage * kPage, kPage, kMostBlock);
  Streamer streamer(planner, source, dst, sink, done);
  RESHARD_TRY(streamer.prepare(slots, block_bytes));
  auto memory = RESHARD_TRY(HostBuffer::allocate(block_bytes * pool.size()));
  Index total = 0;
  for (const Block& b : streamer.blocks()) total += b.end - b.begin;
  ProgressMeter meter("write", total, options.progress);
  const std::vector<Block>& blocks = streamer.blocks();
  std::atomic<std::size_t> next{0}, announced{0};
  const auto announce_until = [&](std::size_t end) {
    while (options.ahead && announced < std::min(end, blocks.size()))
      if (const std::size_t i = announced++; i < blocks.size())
        streamer.announce(blocks[i], options.ahead);
  };
  auto body = [&](int worker) {
    const auto mine = memory.bytes().subspan(static_cast<std::size_t>(block_bytes * worker),
                                             static_cast<std::size_t>(block_bytes));
    for (std::size_t i = next++; i < blocks.size(); i = next++) {
      announce_until(i + kBlocksAhead);
      const Block& block = blocks[i];
      if (auto made = streamer.make(block, mine); !made) meter.fail_with(std::move(made).error());
      if (!meter.add(worker, block.end - block.begin)) break;
    }
  };
  pool.run(body);
  return meter.finish();
}

}  // namespace reshard
