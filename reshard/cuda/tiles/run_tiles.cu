// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/tiles/run_tiles.h"

#include "reshard/cuda/fingerprints/run_fingerprints.h"
#include "reshard/cuda/tiles/run_blocks.h"
#include "reshard/cuda/tiles/run_conversions.h"
#include "reshard/cuda/tiles/run_transposes.h"

extern "C" __global__ void __launch_bounds__(reshard::cuda::kTileThreads,
                                             reshard::cuda::kTileBlocks)
    reshard_run_tiles(const __grid_constant__ reshard::cuda::TileLaunch launch) {
  reshard::cuda::run_tiles(launch, {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});
}

namespace {

using namespace reshard;
using namespace reshard::cuda;

__device__ TileThread this_thread() { return {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x}; }

}  // namespace

extern "C" __global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    reshard_transpose(const __grid_constant__ TransposeLaunch launch) {
  __shared__ TransposeShared shared;
  const TileThread me = this_thread();
  for_each_transpose(launch, me, [&](const TransposePiece& piece, const TransposePart& part) {
    load_phase(piece, part, shared, me);
    __syncthreads();
    store_phase(piece, part, shared, me);
    __syncthreads();  // The next tile overwrites what this one reads.
  });
}

extern "C" __global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    reshard_fingerprint(const __grid_constant__ FingerprintLaunch launch) {
  __shared__ FingerprintShared shared;
  const TileThread me = this_thread();
  for_each_slice(launch, me, [&](const FingerprintSlice& slice) {
    row_phase(launch, slice, shared, me);
    __syncthreads();
    sum_phase(launch, slice, shared, me);
    __syncthreads();
    write_phase(launch, slice, shared, me);  // The next row_phase() writes what this does not read.
  });
}

extern "C" __global__ void __launch_bounds__(kTileThreads)
    reshard_amax(const __grid_constant__ MatrixLaunch launch) {
  __shared__ std::uint32_t most;
  const TileThread me = this_thread();
  for_each_tile(launch, me, [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t i) {
    clear_maximum(most, me);
    __syncthreads();
    any_amax_phase(m, tile, most, me);
    __syncthreads();
    write_maximum(launch.amaxes + i, most, me);  // The thread that reads it clears it.
  });
}

extern "C" __global__ void __launch_bounds__(kTileThreads)
    reshard_maximum(const __grid_constant__ MaximumLaunch launch) {
  __shared__ std::uint32_t most;
  const TileThread me = this_thread();
  for_each_maximum(launch, me, [&](const Maximum& maximum) {
    clear_maximum(most, me);
    __syncthreads();
    maximum_phase(maximum, most, me);
    __syncthreads();
    write_maximum(maximum.to, most, me);
  });
}

extern "C" __global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    reshard_convert(const __grid_constant__ TileLaunch launch) {
  convert_tiles(launch, this_thread());
}

// By eight values.
#define RESHARD_CONVERT(From, To)                                                \
  extern "C" __global__ void __launch_bounds__(kTileThreads, kTileBlocks)        \
      reshard_convert_##From##_##To(const __grid_constant__ TileLaunch launch) { \
    convert_vector_tiles<DType::From, DType::To>(launch, this_thread());         \
  }
#define RESHARD_CONVERT_EACH(From) \
  RESHARD_CONVERT(From, bf16) RESHARD_CONVERT(From, f16) RESHARD_CONVERT(From, f32)
RESHARD_CONVERT_EACH(bf16)
RESHARD_CONVERT_EACH(f16)
RESHARD_CONVERT_EACH(f32)

extern "C" __global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    reshard_quantise(const __grid_constant__ MatrixLaunch launch) {
  __shared__ MatrixShared shared;
  const TileThread me = this_thread();
  for_each_tile(launch, me, [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t) {
    clear_phase(m, tile, shared, me);
    __syncthreads();
    block_amax_phase(m, tile, shared, me);
    __syncthreads();
    scale_phase(m, tile, shared, me);
    __syncthreads();
    encode_phase(m, tile, shared, me);
    __syncthreads();  // The next tile clears what this one reads.
  });
}

extern "C" __global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    reshard_dequantise(const __grid_constant__ MatrixLaunch launch) {
  const TileThread me = this_thread();
  for_each_tile(launch, me, [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t) {
    decode_phase(m, tile, me);
  });
}

#define RESHARD_VECTORS(D, C)                                                                   \
  extern "C" __global__ void __launch_bounds__(kTileThreads, kTileBlocks)                       \
      reshard_quantise_vectors_##D##_##C(const __grid_constant__ MatrixLaunch launch) {         \
    const TileThread me = this_thread();                                                        \
    for_each_tile(launch, me, [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t) { \
      with_scale<CodeKind::C>(m.scale, [&](auto scale) {                                        \
        quantise_vectors<DType::D, CodeKind::C, scale.value>(m, tile, me);                      \
      });                                                                                       \
    });                                                                                         \
  }                                                                                             \
  extern "C" __global__ void __launch_bounds__(kTileThreads, kTileBlocks)                       \
      reshard_dequantise_vectors_##D##_##C(const __grid_constant__ MatrixLaunch launch) {       \
    const TileThread me = this_thread();                                                        \
    for_each_tile(launch, me, [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t) { \
      with_scale<CodeKind::C>(m.scale, [&](auto scale) {                                        \
        decode_vectors<DType::D, CodeKind::C, scale.value>(m, tile, me);                        \
      });                                                                                       \
    });                                                                                         \
  }
#define RESHARD_HELD(D, C)                                                                      \
  extern "C" __global__ void __launch_bounds__(kTileThreads, kTileBlocks)                       \
      reshard_quantise_held_##D##_##C(const __grid_constant__ MatrixLaunch launch) {            \
    __shared__ MatrixShared shared;                                                             \
    const TileThread me = this_thread();                                                        \
    for_each_tile(launch, me, [&](const MatrixPair& m, const MatrixTile& tile, std::uint32_t) { \
      Held<DType::D, kTileElements / 8 / kTileThreads> held;                                    \
      clear_held_phase(shared, me);                                                             \
      __syncthreads();                                                                          \
      hold_phase(m, tile, shared, held, me);                                                    \
      __syncthreads();                                                                          \
      with_scale<CodeKind::C>(m.scale, [&](auto scale) {                                        \
        encode_held_phase<DType::D, CodeKind::C, scale.value>(m, tile, shared, held, me);       \
      });                                                                                       \
      __syncthreads();                                                                          \
    });                                                                                         \
  }
RESHARD_VECTOR_KERNELS(RESHARD_VECTORS)
RESHARD_HELD_KERNELS(RESHARD_HELD)
