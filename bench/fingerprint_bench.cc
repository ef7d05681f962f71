// SPDX-License-Identifier: Apache-2.0
// Fingerprints one tensor, in turn with read-only passes over the same bytes. Prints one line per
// number of threads.
//
//   fingerprint_bench --tensor 131072x4096 --dtype BF16 [--columns BEGIN,END] [--threads 1,2]
//                     [--rounds N]
//   fingerprint_bench --copy BYTES [--threads 1,2] [--rounds N]
//
// --columns selects the columns that one rank of a column cut holds, stored without gaps.
// Afterwards the fingerprint is recomputed with the plain C++ kernels and must be equal.
// --copy copies a tensor of so many bytes and fingerprints both ends, in separate passes and tile
// by tile.
#include <cstring>

#include "bench/common/arguments.h"
#include "bench/common/plain_ways.h"
#include "bench/fused_fingerprints.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/transform/fingerprint.h"
#include "reshard/transform/fingerprint_key.h"
#include "reshard/transform/oracle.h"
#include "reshard/transform/simd.h"

namespace reshard::bench {
namespace {

constexpr const char* kName = "model.layers.0.mlp.down_proj.weight";

/// The columns [columns.begin(), columns.end()) of a matrix, in memory.
struct MatrixColumns {
  FingerprintKey key;
  Index rows, width_bits;
  Interval columns;
  HostBuffer memory;

  Index bytes() const { return memory.size(); }
  /// The fingerprint of rows [begin, end).
  Result<Fingerprint> print(Index begin, Index end) const {
    const Index pitch = columns.size();
    return fingerprint(key, Box{{begin, end}, columns}, Strided{0, {pitch, 1}},
                       memory.data() + begin * pitch * width_bits / 8);
  }
};

Result<MatrixColumns> make_matrix(Arguments& arguments) {
  const auto sizes = RESHARD_TRY(arguments.integers("tensor", "", 'x'));
  const auto dtype = dtype_from_name(arguments.text("dtype", "BF16"));
  if (sizes.size() != 2 || !dtype)
    return fail(Code::invalid_argument, "give --tensor ROWSxCOLUMNS and a dtype of safetensors");
  const auto columns = RESHARD_TRY(arguments.integers("columns", "0," + std::to_string(sizes[1])));
  if (columns.size() != 2 || columns[0] >= columns[1] || columns[1] > sizes[1])
    return fail(Code::invalid_argument, "--columns takes BEGIN,END inside the row");
  const Dims shape{sizes[0], sizes[1]};
  const Interval part{columns[0], columns[1]};
  auto memory = RESHARD_TRY(HostBuffer::allocate(sizes[0] * part.size() * bits(*dtype) / 8, {2}));
  RESHARD_TRY(oracle_fill(Oracle{OracleKind::bits, 1}, kName, shape, *dtype,
                          Box{{0, sizes[0]}, part}, Strided{0, {part.size(), 1}}, memory.data()));
  return MatrixColumns{RESHARD_TRY(FingerprintKey::make(kName, shape, *dtype)), sizes[0],
                       bits(*dtype), part, std::move(memory)};
}

/// The fingerprint of the whole matrix; rows are divided among the threads.
Result<Fingerprint> print_in_threads(const MatrixColumns& tensor, WorkerPool& pool) {
  std::vector<Result<Fingerprint>> parts(static_cast<std::size_t>(pool.size()));
  auto body = [&](int worker) {
    const Index begin = tensor.rows * worker / pool.size();
    const Index end = tensor.rows * (worker + 1) / pool.size();
    parts[static_cast<std::size_t>(worker)] = tensor.print(begin, end);
  };
  pool.run(body);
  Fingerprint sum;
  for (auto& part : parts) sum += RESHARD_TRY(std::move(part));
  return sum;
}

Result<Fingerprint> print_portably(const MatrixColumns& tensor) {
  const SimdLevel level = simd_level();
  set_simd_level(SimdLevel::portable);
  WorkerPool pool(0);
  auto sum = print_in_threads(tensor, pool);
  set_simd_level(level);
  return sum;
}

Result<> measure(const MatrixColumns& tensor, Index threads, Index rounds,
                 const Fingerprint& wanted) {
  WorkerPool pool(static_cast<int>(threads));
  std::vector<Contender> contenders = read_passes(pool, tensor.memory.data(), tensor.bytes());
  Fingerprint found;
  contenders.push_back({"fingerprint", [&]() -> Result<> {
                          found = RESHARD_TRY(print_in_threads(tensor, pool));
                          return {};
                        }});
  const auto seconds = RESHARD_TRY(by_turns(contenders, Rounds(rounds)));
  if (found != wanted)
    return fail(Code::corrupt, "the fingerprint is " + to_string(found) + " but plain C++ gives " +
                                   to_string(wanted));
  JsonLine line;
  line.add("threads", threads);
  line.add("bytes", tensor.bytes());
  line.add("simd", name(simd_level()));
  add_seconds(line, contenders, seconds);
  line.add("fingerprint", to_string(found));
  line.print();
  return {};
}

Result<> run(Arguments& arguments) {
  if (!arguments.text("copy").empty()) return measure_fused_fingerprints(arguments);
  const MatrixColumns tensor = RESHARD_TRY(make_matrix(arguments));
  const auto threads = RESHARD_TRY(arguments.integers("threads", "1"));
  const Index rounds = RESHARD_TRY(arguments.integer("rounds", 7));
  RESHARD_TRY(arguments.unused());
  const Fingerprint wanted = RESHARD_TRY(print_portably(tensor));
  for (const Index n : threads) RESHARD_TRY(measure(tensor, n, rounds, wanted));
  return {};
}

}  // namespace
}  // namespace reshard::bench

int main(int argc, char** argv) {
  return reshard::bench::run_program(argc, argv, reshard::bench::run);
}
