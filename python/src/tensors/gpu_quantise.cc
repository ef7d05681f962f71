// SPDX-License-Identifier: Apache-2.0
#include "python/src/tensors/gpu_quantise.h"

#include <cstring>

#include "reshard/cuda/tiles/matrix_runner.h"

namespace reshard::python {
namespace {

cuda::MatrixRunner runner_of(const cuda::Stream& stream, cuda::MatrixWork work,
                             const cuda::MatrixSlice& slice) {
  cuda::MatrixTable table(work);
  unwrap(table.add(slice));
  table.end_level();
  return unwrap(cuda::MatrixRunner::make(stream.shared_device(), table));
}

}  // namespace

void run_matrix(const cuda::Stream& stream, cuda::MatrixWork work, const FloatMatrix& values,
                const QuantMatrix& stored) {
  cuda::MatrixSlice slice{.values = values, .stored = stored, .rows = values.rows};
  cuda::Buffer amax;
  std::optional<cuda::MatrixRunner> finds;
  if (work == cuda::MatrixWork::quantise && needs_amax(stored.format)) {
    amax = unwrap(cuda::Buffer::on_device(stream.shared_device(), sizeof(float)));
    slice.amax = reinterpret_cast<float*>(amax.data());
    finds = runner_of(stream, cuda::MatrixWork::amax, slice);
    unwrap(finds->launch(stream, 0));
  }
  const cuda::MatrixRunner runner = runner_of(stream, work, slice);
  unwrap(runner.launch(stream, 0));
  unwrap(stream.synchronize());
}

float amax_on_gpu(const cuda::Stream& stream, const FloatMatrix& values) {
  const cuda::Buffer amax = unwrap(cuda::Buffer::on_device(stream.shared_device(), sizeof(float)));
  cuda::MatrixSlice slice{.values = values, .stored = {}, .rows = values.rows};
  slice.amax = reinterpret_cast<float*>(amax.data());
  const cuda::MatrixRunner runner = runner_of(stream, cuda::MatrixWork::amax, slice);
  unwrap(runner.launch(stream, 0));
  const HostBuffer here = unwrap(stream.read(amax.data(), amax.size()));
  float out = 0;
  std::memcpy(&out, here.data(), sizeof out);
  return out;
}

}  // namespace reshard::python
