// SPDX-License-Identifier: Apache-2.0
// The kernels of the emulated GPU.
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_machine_testutil.h"
#include "reshard/cuda/fingerprints/run_fingerprints.h"
#include "reshard/cuda/tiles/matrix_table.h"
#include "reshard/cuda/tiles/run_blocks.h"
#include "reshard/cuda/tiles/run_conversions.h"
#include "reshard/cuda/tiles/run_tiles.h"
#include "reshard/cuda/tiles/run_transposes.h"

namespace reshard::cuda {
namespace {

/// Threads of an emulated block; they take turns within a phase.
constexpr std::uint32_t kThreads = 3;

/// Calls f(the thread) for all threads of a block.
template <class F>
void all_threads(unsigned block, unsigned blocks, F&& f) {
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    f(TileThread{block, blocks, thread, kThreads});
}

void quantise_in_phases(const MatrixPair& m, const MatrixTile& tile, MatrixShared& shared,
                        unsigned block, unsigned blocks) {
  const auto phase = [&](auto&& f) { all_threads(block, blocks, f); };
  phase([&](const TileThread& me) { clear_phase(m, tile, shared, me); });
  phase([&](const TileThread& me) { block_amax_phase(m, tile, shared, me); });
  phase([&](const TileThread& me) { scale_phase(m, tile, shared, me); });
  phase([&](const TileThread& me) { encode_phase(m, tile, shared, me); });
}

template <DType D, CodeKind C>
void quantise_held(const MatrixPair& m, const MatrixTile& tile, MatrixShared& shared,
                   unsigned block, unsigned blocks) {
  std::vector<Held<D, kTileElements / 8 / kThreads + 1>> held(kThreads);
  const auto phase = [&](auto&& f) { all_threads(block, blocks, f); };
  phase([&](const TileThread& me) { clear_held_phase(shared, me); });
  phase([&](const TileThread& me) { hold_phase(m, tile, shared, held[me.thread], me); });
  phase([&](const TileThread& me) {
    with_scale<C>(m.scale, [&](auto scale) {
      encode_held_phase<D, C, scale.value>(m, tile, shared, held[me.thread], me);
    });
  });
}

/// Calls f(matrix, tile, shared memory) for each tile of a thread block.
template <class F>
void each_tile_of_block(const MatrixLaunch& launch, unsigned block, unsigned blocks, F&& f) {
  for_each_tile(launch, {block, blocks, 0, 1},
                [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t) {
                  MatrixShared shared;
                  std::memset(&shared, 0xee, sizeof shared);
                  f(m, tile, shared);
                });
}

void quantise_block(const MatrixLaunch& launch, unsigned block, unsigned blocks) {
  each_tile_of_block(launch, block, blocks,
                     [&](const MatrixPair& m, const MatrixTile& tile, MatrixShared& shared) {
                       quantise_in_phases(m, tile, shared, block, blocks);
                     });
}

/// Writes to `to` what all threads find in phase(most, the thread).
template <class F>
void find_maximum(unsigned block, unsigned blocks, float* to, F&& phase) {
  std::uint32_t most = 0xeeeeeeee;
  all_threads(block, blocks, [&](const TileThread& me) { clear_maximum(most, me); });
  all_threads(block, blocks, [&](const TileThread& me) { phase(most, me); });
  all_threads(block, blocks, [&](const TileThread& me) { write_maximum(to, most, me); });
}

void amax_block(const MatrixLaunch& launch, unsigned block, unsigned blocks) {
  const auto run = [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t i) {
    find_maximum(block, blocks, launch.amaxes + i,
                 [&](auto& most, const TileThread& me) { any_amax_phase(m, tile, most, me); });
  };
  for_each_tile(launch, {block, blocks, 0, 1}, run);
}

void maximum_block(const MaximumLaunch& launch, unsigned block, unsigned blocks) {
  for_each_maximum(launch, {block, blocks, 0, 1}, [&](const Maximum& maximum) {
    find_maximum(block, blocks, maximum.to,
                 [&](auto& most, const TileThread& me) { maximum_phase(maximum, most, me); });
  });
}

void dequantise_block(const MatrixLaunch& launch, unsigned block, unsigned blocks) {
  all_threads(block, blocks, [&](const TileThread& me) {
    for_each_tile(launch, me, [&](const MatrixPair& m, const MatrixTile& t, std::uint32_t) {
      decode_phase(m, t, me);
    });
  });
}

void transpose_block(const TransposeLaunch& launch, unsigned block, unsigned blocks) {
  for_each_transpose(launch, {block, blocks, 0, 1},
                     [&](const TransposePiece& piece, const TransposePart& part) {
                       TransposeShared shared;
                       std::memset(&shared, 0xee, sizeof shared);
                       const auto phase = [&](auto&& f) { all_threads(block, blocks, f); };
                       phase([&](const TileThread& me) { load_phase(piece, part, shared, me); });
                       phase([&](const TileThread& me) { store_phase(piece, part, shared, me); });
                     });
}

void fingerprint_block(const FingerprintLaunch& launch, unsigned block, unsigned blocks) {
  for_each_slice(launch, {block, blocks, 0, 1}, [&](const FingerprintSlice& slice) {
    FingerprintShared shared;
    std::memset(&shared, 0xee, sizeof shared);
    const auto phase = [&](auto&& f) { all_threads(block, blocks, f); };
    phase([&](const TileThread& me) { row_phase(launch, slice, shared, me); });
    phase([&](const TileThread& me) { sum_phase(launch, slice, shared, me); });
    phase([&](const TileThread& me) { write_phase(launch, slice, shared, me); });
  });
}

template <class Launch, class F>
void add_kernel(const std::string& name, F run_block) {
  machine().kernels[name] = {[run_block](const void* arguments, unsigned block, unsigned blocks) {
                               run_block(*static_cast<const Launch*>(arguments), block, blocks);
                             },
                             sizeof(Launch)};
}

/// Adds a kernel whose blocks call run(matrix, tile, shared memory, block, blocks) for each tile.
template <DType D, CodeKind C, class F>
void add_matrix_kernel(MatrixWork work, MatrixWay way, F run) {
  MatrixPair m;
  m.dtype = D;
  m.codes = C;
  m.way = way;
  add_kernel<MatrixLaunch>(
      kernel_name(work, m), [run](const MatrixLaunch& launch, unsigned block, unsigned blocks) {
        each_tile_of_block(launch, block, blocks,
                           [&](const MatrixPair& matrix, const MatrixTile& tile,
                               MatrixShared& shared) { run(matrix, tile, shared, block, blocks); });
      });
}

template <DType D, CodeKind C>
void add_vector_kernels() {
  add_matrix_kernel<D, C>(
      MatrixWork::quantise, MatrixWay::vectors,
      [](const MatrixPair& m, const MatrixTile& tile, MatrixShared&, unsigned block, unsigned all) {
        with_scale<C>(m.scale, [&](auto scale) {
          all_threads(block, all, [&](const TileThread& me) {
            quantise_vectors<D, C, decltype(scale)::value>(m, tile, me);
          });
        });
      });
  add_matrix_kernel<D, C>(
      MatrixWork::dequantise, MatrixWay::vectors,
      [](const MatrixPair& m, const MatrixTile& tile, MatrixShared&, unsigned block, unsigned all) {
        with_scale<C>(m.scale, [&](auto scale) {
          all_threads(block, all, [&](const TileThread& me) {
            decode_vectors<D, C, decltype(scale)::value>(m, tile, me);
          });
        });
      });
}

template <DType From>
void add_convert_kernels() {
  for (const DType to : {DType::bf16, DType::f16, DType::f32})
    with_dtype(to, [&](auto dtype) {
      add_kernel<TileLaunch>(
          fmt::format("{}_{}_{}", kConvertKernel, kernel_suffix(From), kernel_suffix(to)),
          [](const TileLaunch& launch, unsigned block, unsigned blocks) {
            all_threads(block, blocks, [&](const TileThread& me) {
              convert_vector_tiles<From, decltype(dtype)::value>(launch, me);
            });
          });
    });
}

void add_kernels() {
  add_kernel<TileLaunch>(
      kConvertKernel, [](const TileLaunch& launch, unsigned block, unsigned blocks) {
        all_threads(block, blocks, [&](const TileThread& me) { convert_tiles(launch, me); });
      });
  add_convert_kernels<DType::bf16>();
  add_convert_kernels<DType::f16>();
  add_convert_kernels<DType::f32>();
#define RESHARD_ADD_VECTORS(D, C) add_vector_kernels<DType::D, CodeKind::C>();
  RESHARD_VECTOR_KERNELS(RESHARD_ADD_VECTORS)
#define RESHARD_ADD_HELD(D, C)                                                    \
  add_matrix_kernel<DType::D, CodeKind::C>(MatrixWork::quantise, MatrixWay::held, \
                                           quantise_held<DType::D, CodeKind::C>);
  RESHARD_HELD_KERNELS(RESHARD_ADD_HELD)
  add_kernel<TileLaunch>(
      kTileKernel, [](const TileLaunch& launch, unsigned block, unsigned blocks) {
        all_threads(block, blocks, [&](const TileThread& me) { run_tiles(launch, me); });
      });
  add_kernel<TransposeLaunch>(kTransposeKernel, transpose_block);
  add_kernel<MatrixLaunch>(kQuantiseKernel, quantise_block);
  add_kernel<MatrixLaunch>(kDequantiseKernel, dequantise_block);
  add_kernel<MatrixLaunch>(kAmaxKernel, amax_block);
  add_kernel<MaximumLaunch>(kMaximumKernel, maximum_block);
  add_kernel<FingerprintLaunch>(kFingerprintKernel, fingerprint_block);
}

int launch(Function function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned,
           unsigned, StreamHandle stream, void** arguments, void**) {
  if (function == nullptr || !function->run) return kInvalidHandle;
  const auto* const first = static_cast<const std::byte*>(arguments[0]);
  const std::vector<std::byte> parameter(first, first + function->bytes);
  return give("cuLaunchKernel", stream, [function, parameter, blocks] {
    for (unsigned block = 0; block < blocks; ++block)
      function->run(parameter.data(), block, blocks);
  });
}
}  // namespace

void set_kernels(Driver& d) {
  set(d.cuModuleLoadData, [](Module* module, const void*) {
    const int status = called_in_context("cuModuleLoadData");
    if (status == kSuccess) machine().modules.insert(*module = new CUmod_st);
    return status;
  });
  set(d.cuModuleUnload, [](Module module) {
    machine().modules.erase(module);
    delete module;
    return called_in_context("cuModuleUnload");
  });
  set(d.cuModuleGetFunction, [](Function* function, Module, const char* name) {
    const auto found = machine().kernels.find(name);
    if (found == machine().kernels.end()) return kNotFound;
    *function = &found->second;
    return called_in_context("cuModuleGetFunction");
  });
  set(d.cuFuncSetAttribute,
      [](Function, int, int) { return called_in_context("cuFuncSetAttribute"); });
  add_kernels();
  set(d.cuLaunchKernel, [](auto... arguments) { return launch(arguments...); });
}

}  // namespace reshard::cuda
