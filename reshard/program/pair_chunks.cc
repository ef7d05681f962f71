// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/pair_chunks.h"

#include <algorithm>

namespace reshard::program {
namespace {

class Cutter {
 public:
  explicit Cutter(const ChunkSizes& sizes) : sizes_(sizes) {}

  void add(const PairPiece& piece, std::size_t index) {
    const bool sent = piece.src.in_one_run(), received = piece.dst.in_one_run();
    if (piece.bytes >= sizes_.in_place && (sent || received)) {
      cut_alone(index, piece.bytes, sent && received ? kMaxInPlace : sizes_.staged);
    } else {
      pack({piece.bytes, piece.converts}, index);
    }
  }

  void add(const ChainPiece& piece, std::size_t index) {
    if (piece.bytes >= sizes_.in_place) {
      cut_alone(index, piece.bytes, sizes_.staged);
    } else {
      pack(piece, index);
    }
  }

  PairChunks take() {
    flush();
    Index before = 0;
    for (auto& chunk : out_.chunks) {
      chunk.before = before;
      before += chunk.bytes;
    }
    out_.bytes = before;
    return std::move(out_);
  }

 private:
  void cut_alone(std::size_t index, Index bytes, Index most) {
    for (Index begin = 0; begin < bytes; begin += most) {
      const Index end = std::min(bytes, begin + most);
      out_.chunks.push_back({out_.parts.size(), 1, end - begin, 0});
      out_.parts.push_back({index, begin, end, 0});
    }
  }

  void pack(const ChainPiece& piece, std::size_t index) {
    // Elements have at most 8 bytes and chunks a multiple of 64: no chunk ends inside an element.
    if (piece.converts) filled_ = std::min((filled_ + 7) / 8 * 8, sizes_.staged);
    for (Index begin = 0; begin < piece.bytes;) {
      if (filled_ == sizes_.staged) flush();
      const Index end = std::min(piece.bytes, begin + sizes_.staged - filled_);
      packed_.push_back({index, begin, end, filled_});
      filled_ += end - begin;
      begin = end;
    }
  }

  void flush() {
    if (packed_.empty()) return;
    const Index bytes = packed_.back().at + packed_.back().end - packed_.back().begin;
    out_.chunks.push_back({out_.parts.size(), packed_.size(), bytes, 0});
    out_.parts.insert(out_.parts.end(), packed_.begin(), packed_.end());
    packed_.clear();
    filled_ = 0;
  }

  ChunkSizes sizes_;
  PairChunks out_;
  std::vector<ChunkPart> packed_;
  Index filled_ = 0;
};

}  // namespace

PairChunks chunks_of(std::span<const PairPiece> pieces, const ChunkSizes& sizes) {
  Cutter cutter(sizes);
  for (std::size_t i = 0; i < pieces.size(); ++i) cutter.add(pieces[i], i);
  return cutter.take();
}

PairChunks chunks_of_chain(std::span<const ChainPiece> pieces, const ChunkSizes& sizes) {
  Cutter cutter(sizes);
  for (std::size_t i = 0; i < pieces.size(); ++i) cutter.add(pieces[i], i);
  return cutter.take();
}

}  // namespace reshard::program
