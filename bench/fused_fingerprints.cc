// SPDX-License-Identifier: Apache-2.0
#include "bench/fused_fingerprints.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bench/common/turns.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/transform/copy.h"
#include "reshard/transform/fingerprint.h"
#include "reshard/transform/fingerprint_key.h"
#include "reshard/transform/oracle.h"

namespace reshard::bench {
namespace {

constexpr const char* kName = "model.layers.0.mlp.down_proj.weight";
constexpr Index kColumns = 4096, kRowBytes = 2 * kColumns;

/// The work on each tile of a pass.
struct Pass {
  enum class Copy { none, streaming, cached };
  bool source_first = false;  ///< fingerprints the source's tile before it is copied.
  Copy copy = Copy::none;
  bool source = false, target = false;  ///< fingerprints these tiles after the copy.
};

/// A BF16 matrix that is copied, and the fingerprints of its ends in the last round.
struct Ends {
  FingerprintKey key;
  Index rows, tile_rows;
  HostBuffer source, target;
  std::vector<Fingerprint> sources, targets;  ///< by worker.

  Result<Fingerprint> print(const HostBuffer& side, Index begin, Index end) const {
    return fingerprint(key, Box{{begin, end}, {0, kColumns}}, Strided{0, {kColumns, 1}},
                       side.data() + begin * kRowBytes);
  }
  Result<> tile(const Pass& pass, std::size_t worker, Index begin, Index end);
  Result<> run(const Pass& pass, WorkerPool& pool);
};

Result<> Ends::tile(const Pass& pass, std::size_t worker, Index begin, Index end) {
  if (pass.source_first) sources[worker] += RESHARD_TRY(print(source, begin, end));
  if (pass.copy != Pass::Copy::none) {
    CopyTask task;
    task.copy.run_bytes = (end - begin) * kRowBytes;
    task.src = source.data() + begin * kRowBytes;
    task.dst = target.data() + begin * kRowBytes;
    run_copies({&task, 1},
               pass.copy == Pass::Copy::cached ? CopyHint::cached : CopyHint::streaming);
  }
  if (pass.source) sources[worker] += RESHARD_TRY(print(source, begin, end));
  if (pass.target) targets[worker] += RESHARD_TRY(print(target, begin, end));
  return {};
}

Result<> Ends::run(const Pass& pass, WorkerPool& pool) {
  std::vector<Result<>> done(static_cast<std::size_t>(pool.size()));
  const auto part = [&](int worker) -> Result<> {
    const Index last = rows * (worker + 1) / pool.size();
    for (Index at = rows * worker / pool.size(); at < last; at += tile_rows)
      RESHARD_TRY(tile(pass, static_cast<std::size_t>(worker), at, std::min(at + tile_rows, last)));
    copy_fence();
    return {};
  };
  auto body = [&](int worker) { done[static_cast<std::size_t>(worker)] = part(worker); };
  pool.run(body);
  for (auto& one : done) RESHARD_TRY(std::move(one));
  return {};
}

/// A contender of several passes, which checks its fingerprints each time.
Contender contender(const char* name, std::vector<Pass> passes, Ends& ends, WorkerPool& pool,
                    const Fingerprint& wanted) {
  return {name, [=, passes = std::move(passes), &ends, &pool]() -> Result<> {
            ends.sources.assign(static_cast<std::size_t>(pool.size()), {});
            ends.targets = ends.sources;
            for (const Pass& pass : passes) RESHARD_TRY(ends.run(pass, pool));
            Fingerprint source, target;
            for (const Fingerprint& f : ends.sources) source += f;
            for (const Fingerprint& f : ends.targets) target += f;
            if (source != wanted || target != wanted)
              return fail(Code::corrupt, std::string(name) + ": wrong fingerprints");
            return {};
          }};
}

Result<> measure(Ends& ends, Index threads, Index rounds, const Fingerprint& wanted) {
  using Copy = Pass::Copy;
  WorkerPool pool(static_cast<int>(threads));
  const Pass streaming{.copy = Copy::streaming}, source{.source = true}, target{.target = true};
  const Contender contenders[] = {
      contender("separate", {streaming, source, target}, ends, pool, wanted),
      contender("fused", {{.copy = Copy::cached, .source = true, .target = true}}, ends, pool,
                wanted),
      contender("fused_source", {{.source_first = true, .copy = Copy::streaming}, target}, ends,
                pool, wanted)};
  for (const Contender& c : contenders) {
    std::memset(ends.target.data(), 0, static_cast<std::size_t>(ends.target.size()));
    RESHARD_TRY(c.run());
    if (!std::ranges::equal(ends.source.bytes(), ends.target.bytes()))
      return fail(Code::corrupt, c.name + ": wrong bytes");
  }
  const auto seconds = RESHARD_TRY(by_turns(contenders, Rounds(rounds)));
  JsonLine line;
  line.add("threads", threads);
  line.add("bytes", ends.source.size());
  line.add("tile_bytes", ends.tile_rows * kRowBytes);
  add_seconds(line, contenders, seconds);
  line.print();
  return {};
}

}  // namespace

Result<> measure_fused_fingerprints(Arguments& arguments) {
  const Index rows = RESHARD_TRY(arguments.integer("copy", Index{1} << 30)) / kRowBytes;
  const auto threads = RESHARD_TRY(arguments.integers("threads", "1"));
  const Index rounds = RESHARD_TRY(arguments.integer("rounds", 7));
  RESHARD_TRY(arguments.unused());
  if (rows == 0) return fail(Code::invalid_argument, "--copy takes at least 8192 bytes");
  const Dims shape{rows, kColumns};
  Ends ends{RESHARD_TRY(FingerprintKey::make(kName, shape, DType::bf16)),
            rows,
            rows,
            RESHARD_TRY(HostBuffer::allocate(rows * kRowBytes, {2})),
            RESHARD_TRY(HostBuffer::allocate(rows * kRowBytes, {2})),
            {},
            {}};
  RESHARD_TRY(oracle_fill(Oracle{OracleKind::bits, 1}, kName, shape, DType::bf16, Box::whole(shape),
                          Strided{0, {kColumns, 1}}, ends.source.data()));
  const Fingerprint wanted = RESHARD_TRY(ends.print(ends.source, 0, rows));
  for (const Index n : threads)
    for (const Index mebibytes : {1, 4}) {
      ends.tile_rows = (mebibytes << 20) / kRowBytes;
      RESHARD_TRY(measure(ends, n, rounds, wanted));
    }
  return {};
}

}  // namespace reshard::bench
