// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reshard/memory/host_buffer.h"

namespace reshard {

/// A buffer of at least `bytes` bytes, prefaulted and filled with pseudo-random words. There is one
/// per name, reused by later benchmarks. Ends the program if memory runs out.
HostBuffer& bench_buffer(const std::string& name, Index bytes);

/// The textbook copy past the caches: streaming stores of whole vectors, in order.
/// @pre bytes is a multiple of 64; dst is 64-byte aligned
void textbook_streaming_copy(std::byte* dst, const std::byte* src, Index bytes);

/// Reads all bytes in whole vectors. @return a word that depends on each of them
/// @pre bytes % 512 == 0
std::uint64_t read_only_pass(const std::byte* src, Index bytes);

/// A way to move or read some bytes, to be measured.
struct Contender {
  std::string name;
  Index bytes = 0;  ///< per run.
  std::function<void()> run;
};

/// Runs the contenders in turn in every iteration of `state`, after one warm-up. Sets for each the
/// counters "<name>" (median) and "<name>_min" (lowest rate) in GB/s, and "ratio": the first
/// contender's median over the highest median of the `references` contenders that follow it. The
/// time of an iteration is that of the first contender.
void measure_by_turns(benchmark::State& state, const std::vector<Contender>& contenders,
                      std::size_t references);

}  // namespace reshard
