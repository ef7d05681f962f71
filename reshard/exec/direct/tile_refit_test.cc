// SPDX-License-Identifier: Apache-2.0
// Protects: in every sweep, tiles contain the same bytes as a delivery into memory, and zeros
// elsewhere; if a rank cannot deliver tiles, all ranks get the error.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <optional>

#include "reshard/exec/direct/tile_consumer.h"
#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/random_job_testutil.h"
#include "reshard/exec/rank_refit_hooks.h"
#include "reshard/memory/address_range.h"
#include "reshard/model/layout_builder.h"

namespace reshard {
namespace {

constexpr Index kLine = 64;

Index lines(Index bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// Addresses without memory for the local tensors of a rank.
struct Named {
  AddressRange range;
  RankBuffers buffers;

  Named(const std::shared_ptr<const ModelLayout>& layout, Rank me) : buffers(layout) {
    if (!layout->ranks().contains(me)) return;
    Index bytes = 0;
    for (const SlotId slot : layout->slots_of(me))
      bytes += lines(bytes_of_local(*layout, me, slot));
    range = *AddressRange::reserve(bytes);
    std::byte* at = range.begin();
    for (const SlotId slot : layout->slots_of(me)) {
      const Index n = bytes_of_local(*layout, me, slot);
      EXPECT_TRUE(buffers.bind(me, slot, {at, static_cast<std::size_t>(n)}));
      at += lines(n);
    }
  }
};

/// Cuts a rank's local tensors into pieces of `step` bytes, `together` pieces a tile, and copies
/// the tiles into real memory.
class Collector final : public TileConsumer {
 public:
  Collector(const RankBuffers& names, const RankBuffers& into, Rank me, Index step,
            std::size_t together, int sweeps)
      : sweeps_(sweeps) {
    std::vector<TileRange> tile;
    const auto close = [&] {
      if (!tile.empty()) tiles_.push_back(std::exchange(tile, {}));
    };
    for (const SlotId slot : names.layout().slots_of(me)) {
      const Index n = names.bytes(me, slot);
      for (Index at = 0; at < n; at += step) {
        const Index scratch = tile.empty() ? 0 : lines(tile.back().at + tile.back().bytes);
        tile.push_back({names.at(me, slot) + at, std::min(step, n - at), scratch});
        into_[names.at(me, slot) + at] = into.at(me, slot) + at;
        if (tile.size() == together) close();
      }
    }
    close();
  }

  std::size_t size() const override { return tiles_.size(); }
  std::span<const TileRange> ranges(std::size_t tile) const override { return tiles_[tile]; }
  Index scratch_bytes() const override {
    Index most = 0;
    for (const auto& tile : tiles_) most = std::max(most, tile.back().at + tile.back().bytes);
    return most;
  }
  int sweeps() const override { return sweeps_; }
  void consume(int sweep, std::size_t tile, std::byte* scratch) override {
    EXPECT_EQ(sweep, ended_);
    for (const TileRange& range : tiles_[tile]) {
      const auto n = static_cast<std::size_t>(range.bytes);
      if (sweep + 1 == sweeps_) std::memcpy(into_.at(range.begin), scratch + range.at, n);
      std::memset(scratch + range.at, 0x5a, n);
    }
    ++taken_;
  }
  void end_sweep(int sweep) override { EXPECT_EQ(sweep, ended_++); }
  /// Starts again; returns the number of tiles that were consumed.
  std::size_t restart() {
    ended_ = 0;
    return taken_.exchange(0);
  }

 private:
  int sweeps_, ended_ = 0;
  std::atomic<std::size_t> taken_{0};
  std::vector<std::vector<TileRange>> tiles_;
  std::map<const std::byte*, std::byte*> into_;
};

struct Case : RandomJob {
  Index step = *rc::gen::element<Index>(8, 24, 64, 1 << 20);
  std::size_t together = *rc::gen::element<std::size_t>(1, 3);
  int sweeps = *rc::gen::inRange(1, 3), threads = *rc::gen::inRange(1, 3);
  Case() {
    for (const Rank r : target.ranks()) wipe(target, r, 0x77);
  }
};

Result<> run_twice(const Case& c, RankEnds& ends) {
  const Rank me = ends.transport->rank();
  const Named names(c.to, me);
  const bool has = c.to->ranks().contains(me);
  std::optional<Collector> collector;
  if (has) collector.emplace(names.buffers, c.target, me, c.step, c.together, c.sweeps);
  RankRefitOptions options;
  options.path = RefitPath::direct;
  options.threads = c.threads;
  RankRefitHooks hooks;
  hooks.tiles = has ? &*collector : nullptr;
  auto refit = RESHARD_TRY(RankRefit::prepare(c.planner, &c.source, &names.buffers, *ends.transport,
                                              *ends.control, options, hooks));
  const RankPlan part = c.planner.rank_plan(me);
  const bool comes = !part.recvs.empty() || !part.locals.empty();
  for (int i = 0; i < 2; ++i) {
    RESHARD_TRY(refit.run());
    if (!comes) continue;
    EXPECT_EQ(collector->restart(), collector->size() * static_cast<std::size_t>(c.sweeps));
  }
  return ends.control->quiesce(patient());
}

/// Bytes outside all tensors that are not zero, on ranks that receive something.
Index count_padding_not_zero(const Case& c) {
  RankBuffers expected = allocate_all(c.to);
  fill_elements(expected);
  Index wrong = 0;
  for (const Rank r : c.target.ranks()) {
    const RankPlan part = c.planner.rank_plan(r);
    if (part.recvs.empty() && part.locals.empty()) continue;
    for (const SlotId slot : c.to->slots_of(r))
      for (Index i = 0; i < c.target.bytes(r, slot); ++i)
        wrong += c.target.at(r, slot)[i] != expected.at(r, slot)[i] ? 1 : 0;
  }
  return wrong;
}

RC_GTEST_PROP(Tiles, have_every_element_and_zeros_elsewhere, ()) {
  const Case c;
  on_ranks(c.world, [&](RankEnds& ends) { return run_twice(c, ends); });
  RC_ASSERT(!testing::Test::HasFailure());
  RC_ASSERT(count_wrong_elements(c.target) == 0);
  RC_ASSERT(count_padding_not_zero(c) == 0);
}

TEST(Tiles, of_memory_that_is_not_mapped_are_an_error_on_all) {
  auto model = std::make_shared<ModelSpec>();
  ASSERT_TRUE(model->add("weight", {6, 4}, DType::bf16));
  const auto whole_on = [&](Rank r) {
    LayoutBuilder b("on one rank", model);
    const MeshId mesh = b.add_mesh(*Mesh::make({{"x", 1}}, r));
    b.add(Slot{.name = "weight",
               .dtype = DType::bf16,
               .mesh = mesh,
               .ranks = b.ranks_where(mesh, {}),
               .sections = {whole_tensor(*model, TensorId(0), {})}});
    return std::make_shared<const ModelLayout>(*std::move(b).finish());
  };
  const auto from = whole_on(Rank(0)), to = whole_on(Rank(1));
  const Planner planner = *Planner::make(from, to);
  const RankBuffers source = allocate_all(from), target = allocate_all(to);
  on_ranks(3, [&](RankEnds& ends) -> Result<> {
    const Rank me = ends.transport->rank();
    LimitedTransport transport(std::move(ends.transport), Limit::no_address);
    Collector collector(target, target, Rank(1), 8, 1, 1);
    RankRefitOptions options;
    options.path = RefitPath::direct;
    RankRefitHooks hooks;
    hooks.tiles = me == Rank(1) ? &collector : nullptr;
    const auto refit =
        RankRefit::prepare(planner, &source, &target, transport, *ends.control, options, hooks);
    if (refit) return fail(Code::corrupt, "was prepared");
    EXPECT_EQ(refit.error().code, Code::unsupported);
    EXPECT_NE(refit.error().message.find("rank 1: peers' memory is not mapped"), std::string::npos)
        << refit.error().message;
    return {};
  });
}

}  // namespace
}  // namespace reshard
