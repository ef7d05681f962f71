// SPDX-License-Identifier: Apache-2.0
// The kernels of the emulated GPU.
#include <cstring>
#include <functional>

#include "reshard/cuda/emulated_machine_testutil.h"
#include "reshard/cuda/fingerprints/run_fingerprints.h"
#include "reshard/cuda/tiles/run_matrices.h"
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

void quantise_block(const MatrixLaunch& launch, unsigned block, unsigned blocks) {
  const auto run = [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t) {
    MatrixShared shared;
    std::memset(&shared, 0xee, sizeof shared);
    const auto phase = [&](auto&& f) { all_threads(block, blocks, f); };
    phase([&](const TileThread& me) { clear_phase(m, tile, shared, me); });
    phase([&](const TileThread& me) { block_amax_phase(m, tile, shared, me); });
    phase([&](const TileThread& me) { scale_phase(m, tile, shared, me); });
    phase([&](const TileThread& me) { encode_phase(m, tile, shared, me); });
  };
  for_each_tile(launch, {block, blocks, 0, 1}, run);
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
                 [&](auto& most, const TileThread& me) { tile_amax_phase(m, tile, most, me); });
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
void add_kernel(const char* name, F run_block) {
  machine().kernels[name] = {[run_block](const void* arguments, unsigned block, unsigned blocks) {
                               run_block(*static_cast<const Launch*>(arguments), block, blocks);
                             },
                             sizeof(Launch)};
}

void add_kernels() {
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
