// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/cuda/tiles/tiles.h"
#include "reshard/cuda/tiles/transpose_table.h"
#include "reshard/transform/copy.h"

namespace reshard::cuda {

/// Collects copies between addresses that a GPU can use, and cuts them into tiles for its thread
/// blocks. Tiles of one level may run in any order, and a level runs after the one before it. The
/// tables are built once and kept on the device.
class TileTable {
 public:
  /// Bytes that a thread block copies at once, about.
  static constexpr Index kTileBytes = Index{64} << 10;

  /// Adds a copy to the level. Adjacent calls for adjacent memory keep its lines in the GPU's
  /// caches. Each access is as wide, up to 16 bytes, as the alignment of addresses, runs and
  /// strides allows; long runs that both begin at the same odd place of 16 bytes are cut so that
  /// only their ends are narrow. Errors: `unsupported` if values to convert are not aligned to
  /// their size. @pre as for run_copies()
  Result<> add(const CopyTask& task);
  /// Ends the level: later copies run after all copies until here.
  void end_level();

  /// Tiles that copy, and what of conversions() belongs to the level.
  struct Level {
    std::uint32_t first_tile = 0, end_tile = 0;
    std::uint32_t first_conversions = 0, end_conversions = 0;
  };
  /// Those that have any copy. @pre end_level() was called after the last add()
  std::span<const Level> levels() const { return levels_; }
  /// Tiles that convert, which one kernel takes: one launch.
  struct Conversions {
    std::string kernel;
    std::uint32_t first_tile = 0, end_tile = 0;
  };
  std::span<const Conversions> conversions() const { return conversions_; }
  /// The copies that transpose matrices, which no tile here has. It has the same levels.
  const TransposeTable& transposes() const { return transposes_; }
  std::span<const CopyTile> tiles() const { return tiles_; }
  std::span<const CopySlice> slices() const { return slices_; }
  std::span<const CopyPiece> pieces() const { return pieces_; }
  std::span<const CopyLoop> loops() const { return loops_; }
  /// The bytes of all copies.
  Index bytes() const { return bytes_; }

 private:
  void add_bits(const CopyTask& task);
  void add_conversions();
  void add_piece(const CopyTask& task, int log2_width, Index vector_bytes);
  void add_slices(std::uint32_t piece, Index vectors, Index vector_bytes);
  void end_tile();

  std::vector<Level> levels_;
  std::vector<CopyTile> tiles_;
  std::vector<CopySlice> slices_;
  std::vector<CopyPiece> pieces_;
  std::vector<CopyLoop> loops_;
  TransposeTable transposes_;
  /// The converting copies of the level that is being filled, by kernel.
  std::map<std::string, std::vector<CopyTask>> converting_;
  std::vector<Conversions> conversions_;
  Index bytes_ = 0, filled_ = 0;
};

}  // namespace reshard::cuda
