// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/matrix_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/cuda/packed_tables.h"
#include "reshard/cuda/tiles.h"
#include "reshard/transform/scale_kind.h"

namespace reshard::cuda {
namespace {

/// Elements of a tile, about: its values stay in the caches of a multiprocessor between phases.
constexpr Index kTileElements = Index{16} << 10;
constexpr Index kMostElements = Index{1} << 31;
constexpr Index kAtOnce = 8;

Index width(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

std::uint32_t narrow(Index n) { return static_cast<std::uint32_t>(n); }

bool is_multiple(const void* at, Index row_bytes, Index of) {
  return reinterpret_cast<std::uintptr_t>(at) % static_cast<std::uintptr_t>(of) == 0 &&
         row_bytes % of == 0;
}

Result<> check_alignment(const FloatMatrix& values, const QuantMatrix& stored) {
  const bool wide = stored.format.scale == DType::f32;
  if (is_multiple(values.data, values.row_bytes, width(values.dtype)) &&
      (!wide || is_multiple(stored.scales, stored.scale_row_bytes, 4)) &&
      (!stored.format.tensor_factor || is_multiple(stored.factor, 0, 4)))
    return {};
  return fail(Code::unsupported,
              "a GPU quantises only values, scales and factors that are aligned to their size");
}

/// 8, if 8 values and their codes are never apart and always aligned; else as few as a byte of data
/// has.
std::uint8_t at_once(const FloatMatrix& values, const QuantMatrix& stored, Index block_cols) {
  const bool halves = stored.format.data == DType::f4;
  const Index bytes = halves ? kAtOnce / 2 : kAtOnce;
  const bool aligned = is_multiple(values.data, values.row_bytes, 16) &&
                       is_multiple(stored.data, stored.row_bytes, bytes) &&
                       (block_cols % kAtOnce == 0 || block_cols >= values.cols);
  return aligned ? kAtOnce : halves ? 2 : 1;
}

}  // namespace

Result<> MatrixTable::add(const FloatMatrix& values, const QuantMatrix& stored) {
  RESHARD_TRY(check_quant_format(stored.format, values.rows, values.cols));
  if (values.rows >= kMostElements || values.cols >= kMostElements)
    return fail(Code::unsupported,
                fmt::format("a GPU quantises matrices of fewer than 2^31 rows and "
                            "columns, not [{}, {}]",
                            values.rows, values.cols));
  RESHARD_TRY(check_alignment(values, stored));
  if (values.rows == 0 || values.cols == 0) return {};
  const QuantFormat& f = stored.format;
  MatrixPair m;
  m.values = values.data;
  m.data = stored.data;
  m.scales = stored.scales;
  m.factor = reinterpret_cast<float*>(stored.factor);
  m.values_row = values.row_bytes;
  m.data_row = stored.row_bytes;
  m.scales_row = stored.scale_row_bytes;
  m.rows = narrow(values.rows);
  m.cols = narrow(values.cols);
  m.block_rows = f.block_rows == 0 ? m.rows : static_cast<std::uint32_t>(f.block_rows);
  m.block_cols = f.block_cols == 0 ? m.cols : static_cast<std::uint32_t>(f.block_cols);
  m.scale_cols = narrow(scale_cols(f, values.cols));
  m.dtype = values.dtype;
  m.scale = scale_kind(f);
  m.small = small_float(f);
  m.zero_block = f.zero_block;
  m.wide_scales = f.scale == DType::f32;
  m.swizzled = f.order == ScaleOrder::swizzled;
  m.one_block = is_one_block(f);
  m.needs_amax = reshard::needs_amax(f);
  m.has_factor = f.tensor_factor;
  m.factor_divides = f.factor_divides;
  m.at_once = at_once(values, stored, m.block_cols);
  add_tiles(m);
  matrices_.push_back(m);
  return {};
}

void MatrixTable::add_tiles(const MatrixPair& m) {
  // Blocks across, then rows of blocks down, up to the size of a tile. The only block of a matrix
  // is cut into rows.
  const Index block_rows = m.one_block ? 1 : m.block_rows;
  const Index fit = std::max<Index>(1, kTileElements / (block_rows * m.block_cols));
  const Index across = std::min({Index{kTileSlots}, Index{m.scale_cols}, fit});
  const Index down = std::clamp<Index>(fit / across, 1, Index{kTileSlots} / across) * block_rows;
  for (Index row = 0; row < m.rows; row += down)
    for (Index block = 0; block < m.scale_cols; block += across)
      tiles_.push_back({narrow(std::ssize(matrices_)), narrow(row),
                        narrow(std::min(row + down, Index{m.rows})), narrow(block),
                        narrow(std::min(block + across, Index{m.scale_cols}))});
}

Result<MatrixRunner> MatrixRunner::make(std::shared_ptr<const Device> device,
                                        const MatrixTable& table, Direction direction,
                                        int most_blocks) {
  MatrixRunner out;
  if (table.tiles().empty()) return out;
  const bool quantises = direction == Direction::quantise;
  out.kernel_ = RESHARD_TRY(device->kernel(quantises ? kQuantiseKernel : kDequantiseKernel));
  out.amax_kernel_ = RESHARD_TRY(device->kernel(kAmaxKernel));
  out.most_blocks_ = most_blocks > 0
                         ? static_cast<unsigned>(most_blocks)
                         : static_cast<unsigned>(device->multiprocessors()) * kTileBlocks;
  std::vector<MatrixPair> matrices(table.matrices().begin(), table.matrices().end());
  const auto needs = [&](const MatrixPair& m) { return quantises && m.needs_amax; };
  const Index amaxes = std::ranges::count_if(matrices, needs);
  if (amaxes > 0) {
    out.amaxes_ =
        RESHARD_TRY(Buffer::on_device(device, amaxes * static_cast<Index>(sizeof(std::uint32_t))));
    auto* next = reinterpret_cast<std::uint32_t*>(out.amaxes_.data());
    for (MatrixPair& m : matrices)
      if (needs(m)) m.amax = next++;
  }
  std::vector<MatrixTile> with_amax;
  for (const MatrixTile& t : table.tiles())
    if (needs(matrices[t.matrix])) with_amax.push_back(t);
  PackedTables packed;
  const Index at = packed.add(std::span<const MatrixPair>(matrices)),
              tiles = packed.add(table.tiles()),
              first = packed.add(std::span<const MatrixTile>(with_amax));
  out.tables_ = RESHARD_TRY(packed.copy_to(device));
  const auto work = [&](Index where, std::size_t num) {
    return MatrixLaunch{table_at<MatrixPair>(out.tables_, at),
                        table_at<MatrixTile>(out.tables_, where), static_cast<std::uint32_t>(num)};
  };
  out.all_ = work(tiles, table.tiles().size());
  out.with_amax_ = work(first, with_amax.size());
  out.device_ = std::move(device);
  return out;
}

Result<> MatrixRunner::launch(const Stream& stream) const {
  if (all_.num_tiles == 0) return {};
  if (with_amax_.num_tiles > 0) {
    RESHARD_TRY(stream.fill(amaxes_.data(), std::byte{0}, amaxes_.size()));
    RESHARD_TRY(launch(stream, amax_kernel_, with_amax_));
  }
  return launch(stream, kernel_, all_);
}

Result<> MatrixRunner::launch(const Stream& stream, Function kernel,
                              const MatrixLaunch& work) const {
  MatrixLaunch launched = work;
  void* arguments[] = {&launched};
  const unsigned blocks = std::min(most_blocks_, work.num_tiles);
  return device_->call("cuLaunchKernel of quantised matrices", [&] {
    return device_->driver().cuLaunchKernel(kernel, blocks, 1, 1, kTileThreads, 1, 1, 0,
                                            stream.handle(), arguments, nullptr);
  });
}

}  // namespace reshard::cuda
