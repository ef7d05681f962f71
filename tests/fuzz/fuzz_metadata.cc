// SPDX-License-Identifier: Apache-2.0
// Protects: gathered metadata are refused, or are in the form that they are written in and give
// layouts or one clear error.
#include <cstdint>
#include <span>

#include "reshard/base/check.h"
#include "reshard/model/reported/gathered.h"
#include "reshard/model/reported/metadata_codec.h"

namespace {

using namespace reshard;

template <class T>
bool is_good(const Result<T>& result) {
  if (result) return true;
  const auto& message = result.error().message;
  RESHARD_CHECK(!message.empty());
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto all = decode_metadata(std::span(reinterpret_cast<const std::byte*>(data), size));
  if (!is_good(all)) return 0;
  RESHARD_CHECK(*decode_metadata(encode_metadata(*all)) == *all);
  for (std::size_t i = 0; i < all->ranks.size() && i < 4; ++i) is_good(expand(*all, i));
  const auto pair = gathered_layouts(*all, *all);
  if (!is_good(pair)) return 0;
  std::size_t checked = 0;
  pair->source->ranks().for_each([&](Rank r) {
    if (checked++ < 4) RESHARD_CHECK(check_shard_map(*pair->source, r).has_value());
  });
  return 0;
}
