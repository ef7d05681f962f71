// SPDX-License-Identifier: Apache-2.0
// GPUs and streams as Python names them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "python/src/support.h"
#include "reshard/cuda/stream.h"

namespace reshard::python {

/// The GPU of this number, as CUDA counts those that it sees. Opened in the first call, once per
/// process, and never closed: torch uses the same context. Needs no GIL. Throws what
/// Device::open() fails with; `invalid_argument` in a process that was
/// forked from one that had opened a GPU.
const std::shared_ptr<const cuda::Device>& gpu(int ordinal);

/// Why a refit cannot use this GPU: no driver, no such GPU, no kernels in this build for it. Empty
/// if it can.
std::string why_no_gpu(int ordinal);

/// The GPU whose memory an address is in. Throws `invalid_argument` for other memory, and as gpu().
int gpu_of_address(const void* at);

/// The GPU that the argument `device` names ("cuda", "cuda:1", or a torch.device of that kind);
/// none for None and "cpu". Throws `invalid_argument` for anything else.
std::optional<int> gpu_argument(const nb::object& device);

/// "cuda:0".
std::string gpu_text(int ordinal);

/// The stream that Python gives: the number that is its handle (a cudaStream_t), a
/// torch.cuda.Stream or another object with `cuda_stream`, or one with `__cuda_stream__`. 0 and 1
/// are the legacy default stream, which is null here. Throws `type_error` for anything else;
/// `invalid_argument` for a stream that says it is of another GPU than `ordinal` (-1: of any), and
/// for the default stream of each thread, which is another one in reshard's threads.
cuda::StreamHandle stream_handle(nb::handle stream, int ordinal);

/// The same for the number of a handle.
cuda::StreamHandle stream_of_number(std::uint64_t number);

/// The stream on which a tensor's own library works now: torch's current one for its tensors; the
/// legacy default stream for tensors of libraries that do not say.
cuda::StreamHandle current_stream(nb::handle tensor, int ordinal);

/// A stream as DLPack's exporters take it: 1 is the legacy default stream.
inline std::int64_t dlpack_stream(cuda::StreamHandle stream) {
  return stream == nullptr ? 1 : static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(stream));
}

/// Orders streams of one GPU without waiting. Move-only; keeps one event for each stream that it
/// has seen first.
class StreamOrder {
 public:
  /// Later work of `second` waits for what `first` has now; nothing if they are the same. Throws
  /// the driver's errors.
  void order(const std::shared_ptr<const cuda::Device>& device, cuda::StreamHandle first,
             cuda::StreamHandle second);

 private:
  std::map<cuda::StreamHandle, cuda::Event> events_;
};

}  // namespace reshard::python
