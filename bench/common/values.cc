// SPDX-License-Identifier: Apache-2.0
#include "bench/common/values.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "reshard/memory/worker_pool.h"
#include "reshard/transform/oracle.h"

namespace reshard::bench {
namespace {

/// Finite values: casts of NaN take a slower path.
constexpr Oracle kOracle{OracleKind::weights, 1};

/// A local tensor of a rank.
struct RankSlot {
  Rank rank;
  SlotId slot;
};

/// Calls f(canonical tensor, fragment, local tensor's first byte) for each fragment in the buffers,
/// with all cores. Errors: the first one that f returned.
template <class F>
Result<> for_each_fragment(const RankBuffers& buffers, F&& f) {
  const ModelLayout& layout = buffers.layout();
  std::vector<RankSlot> all;
  for (const Rank r : buffers.ranks())
    for (const SlotId slot : layout.slots_of(r)) all.push_back({r, slot});
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  Result<> first_error;
  auto body = [&](int) {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      std::byte* const data = buffers.at(all[i].rank, all[i].slot);
      for (const Fragment& fragment : layout.local(all[i].slot, all[i].rank).fragments) {
        Result<> done = f(layout.model()[fragment.tensor], fragment, data);
        const std::lock_guard lock(mutex);
        if (!done && first_error) first_error = std::move(done);
      }
    }
  };
  WorkerPool pool(0);
  pool.run(body);
  return first_error;
}

}  // namespace

Result<> fill_values(const RankBuffers& buffers) {
  return for_each_fragment(
      buffers, [](const CanonicalTensor& t, const Fragment& f, std::byte* data) {
        return oracle_fill(kOracle, t.name, t.shape, t.dtype, f.box, f.where, data);
      });
}

Result<Index> check_values(const RankBuffers& buffers) {
  std::atomic<Index> bytes{0};
  const auto compare = [&](const CanonicalTensor& t, const Fragment& f,
                           const std::byte* data) -> Result<> {
    const auto wrong =
        RESHARD_TRY(oracle_check(kOracle, t.name, t.shape, t.dtype, f.box, f.where, data));
    if (wrong) return fail(Code::corrupt, t.name + ": " + to_string(*wrong));
    bytes += f.box.volume() * bits(t.dtype) / 8;
    return {};
  };
  RESHARD_TRY(for_each_fragment(buffers, compare));
  return bytes.load();
}

void spoil_values(const RankBuffers& buffers) {
  for (const Rank r : buffers.ranks())
    for (const SlotId slot : buffers.layout().slots_of(r))
      if (std::byte* const data = buffers.at(r, slot); data != nullptr)
        std::memset(data, 0xA5, static_cast<std::size_t>(buffers.bytes(r, slot)));
}

}  // namespace reshard::bench
