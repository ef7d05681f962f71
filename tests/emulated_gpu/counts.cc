// SPDX-License-Identifier: Apache-2.0
// What tests in other languages ask of the emulated GPU, by ctypes: not of the driver's interface.
// For a thread beside which no other calls the driver.
#include "reshard/cuda/emulated_gpu_testutil.h"

using reshard::cuda::emulated_gpu;

extern "C" {

/// How often a function of the driver was called since the last emulated_gpu_forget(), by the name
/// that reshard uses.
int emulated_gpu_calls(const char* function) {
  const auto found = emulated_gpu().calls.find(function);
  return found == emulated_gpu().calls.end() ? 0 : found->second;
}

void emulated_gpu_forget() { emulated_gpu().calls.clear(); }

/// Makes the next call of a function return a CUresult.
void emulated_gpu_fail(const char* function, int status) {
  emulated_gpu().faults[function] = status;
}

/// Device memory that is allocated now, and the most that there is. Bytes.
unsigned long long emulated_gpu_allocated() { return emulated_gpu().allocated_bytes(); }
void emulated_gpu_limit(unsigned long long bytes) { emulated_gpu().total_bytes = bytes; }

}  // extern "C"
