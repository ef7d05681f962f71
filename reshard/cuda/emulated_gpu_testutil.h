// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcuda and a GPU. Device memory is files that other processes can open as they
// would CUDA's handles; AddressSanitizer finds kernels that leave an allocation. Kernels are the
// same source, compiled for the host, with three threads per block that take turns. Work given to a
// stream runs only when somebody waits for it or asks whether it is done, so that code which
// forgets to wait reads old bytes.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "reshard/cuda/driver.h"

namespace reshard::cuda {

/// Counts what was called, and makes calls fail. One emulated machine per process. Any thread may
/// call the driver; what is here is for a thread beside which no other does.
struct EmulatedGpu {
  /// Forgets counts, faults and limits. Memory, streams and events stay.
  void reset();

  int num_devices = 2;
  bool has_peer_access = true;                     ///< between GPUs.
  bool has_block_ids = true;                       ///< as new drivers have.
  std::size_t total_bytes = std::size_t{1} << 32;  ///< of device memory.
  std::map<std::string, int> calls;                ///< of functions, by name.
  std::size_t copied_to_host = 0;                  ///< bytes of device memory, by cuMemcpyAsync.
  /// The CUresult that the next call of a function returns, by name; used once.
  std::map<std::string, int> faults;
  std::size_t allocated_bytes() const;  ///< of device memory of this process.
  /// Streams, events, modules, contexts, buffers, handles and mappings that were not given back.
  int num_open() const;
};

EmulatedGpu& emulated_gpu();
/// Sets EmulatedGpu::num_devices. Any thread may call it, also while others use the driver.
void set_emulated_devices(int count);
/// Gives a stream work of a stand-in for a library: it is called when it is at the front and
/// somebody waits, until it returns true. It must not call the driver.
void give_emulated_work(StreamHandle stream, std::function<bool()> work);

/// The functions, which use emulated_gpu().
const Driver& emulated_driver();

}  // namespace reshard::cuda
