// SPDX-License-Identifier: Apache-2.0
// Protects: a peer's memory table is accepted only if every local tensor is inside a span that the
// peer shared; any other table is an error that names the rank.
#include "reshard/exec/direct/memory_table.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::direct {
namespace {

const Rank kOwner(1);

struct Peer {
  std::shared_ptr<const ModelSpec> model = model_of(tiny_dense());
  std::shared_ptr<const ModelLayout> layout = layout_of("megatron:tp=2", model, tiny_dense());

  /// All of the owner's local tensors, one after the other in one span.
  MemoryTable honest() const {
    MemoryTable table;
    Index at = 0;
    for (const SlotId slot : layout->slots_of(kOwner)) {
      table.places.push_back({slot, 0, at});
      at += bytes_of_local(*layout, kOwner, slot);
    }
    table.spans.push_back({RemoteKey(16, std::byte{7}), at});
    return table;
  }
  Result<MemoryTable> received(const MemoryTable& table) const {
    return decode_memory_table(encode(table), *layout, kOwner);
  }
};

TEST(MemoryTable, comes_back_as_it_was_told) {
  const Peer peer;
  const MemoryTable table = peer.honest();
  const MemoryTable back = *peer.received(table);
  ASSERT_EQ(back.places.size(), table.places.size());
  ASSERT_EQ(back.spans.size(), 1);
  EXPECT_EQ(back.spans[0].key, table.spans[0].key);
  EXPECT_EQ(back.spans[0].bytes, table.spans[0].bytes);
  for (const auto& place : table.places) {
    ASSERT_NE(back.find(place.slot), nullptr);
    EXPECT_EQ(back.find(place.slot)->offset, place.offset);
  }
  EXPECT_EQ(back.find(SlotId(static_cast<int>(peer.layout->num_slots()))), nullptr);
  EXPECT_EQ(peer.received({.reason = "not today"})->reason, "not today");
}

TEST(MemoryTable, refuses_tensors_that_are_not_all_in_their_span) {
  const Peer peer;
  const auto refused = [&](auto&& spoil, const char* why) {
    MemoryTable table = peer.honest();
    spoil(table);
    expect_error(peer.received(table), Code::corrupt, {"the memory table from rank 1", why});
  };
  refused([](MemoryTable& t) { t.spans[0].bytes -= 1; }, "ends beyond its span");
  refused([](MemoryTable& t) { t.places[0].offset = Index{1} << 59; }, "ends beyond its span");
  refused([](MemoryTable& t) { t.places[0].span = 1; }, "does not have");
  refused([](MemoryTable& t) { t.places[1] = t.places[0]; }, "out of order");
  refused([](MemoryTable& t) { t.places.back().slot = SlotId(1 << 20); }, "local tensor");
  refused([](MemoryTable& t) { t.spans[0].key.resize((1 << 20) + 1); }, "key");
}

RC_GTEST_PROP(MemoryTable, a_change_on_the_way_is_found, ()) {
  const Peer peer;
  auto bytes = encode(peer.honest());
  const auto at = *rc::gen::inRange<std::size_t>(0, bytes.size());
  bytes[at] ^= static_cast<std::byte>(*rc::gen::inRange(1, 256));
  RC_ASSERT(!decode_memory_table(bytes, *peer.layout, kOwner).has_value());
  bytes.resize(at);
  RC_ASSERT(!decode_memory_table(bytes, *peer.layout, kOwner).has_value());
}

}  // namespace
}  // namespace reshard::direct
