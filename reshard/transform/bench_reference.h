// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reshard/memory/host_buffer.h"

namespace reshard {

/// The buffer of this many bytes, prefaulted and filled with pseudo-random words; one per name,
/// kept for the next benchmark that asks for at most as many. Ends the program when there is no
/// memory.
HostBuffer& bench_buffer(const std::string& name, Index bytes);

/// Plain streaming stores of whole vectors, one after the other: the textbook copy past the caches.
/// @pre bytes is a multiple of 64; dst is 64-byte aligned
void textbook_streaming_copy(std::byte* dst, const std::byte* src, Index bytes);

/// Reads all bytes in whole vectors and returns a word that depends on each. @pre bytes % 512 == 0
std::uint64_t read_only_pass(const std::byte* src, Index bytes);

/// One way to move or read some bytes.
struct Contender {
  std::string name;
  Index bytes = 0;  ///< that one run handles
  std::function<void()> run;
};

/// Runs the contenders by turns, after one warm-up, as often as `state` iterates. Sets the counters
/// "<name>" (median) and "<name>_min" (lowest rate), in GB/s, of each, and "ratio": the first one's
/// median over the highest median of the `references` that follow it. An iteration's time is the
/// first one's.
void measure_by_turns(benchmark::State& state, const std::vector<Contender>& contenders,
                      std::size_t references);

}  // namespace reshard
