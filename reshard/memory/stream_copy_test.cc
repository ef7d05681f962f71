// SPDX-License-Identifier: Apache-2.0
// Protects: a streaming copy copies exactly its bytes, at every size and alignment.
#include "reshard/memory/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "reshard/base/hash.h"

namespace reshard {
namespace {

TEST(StreamCopy, copies_its_bytes_and_no_others) {
  constexpr std::size_t kRoom = 5000;
  std::vector<std::byte> source(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) source[i] = static_cast<std::byte>(mix64(i));
  for (std::size_t n = 0; n < 4500; n += 1 + n / 40) {
    for (std::size_t to = 0; to < 70; to += 7) {
      const std::size_t from = (n * 13 + to) % 300;
      std::vector<std::byte> got(kRoom, std::byte{0xa5}), want = got;
      stream_copy(got.data() + to, source.data() + from, n);
      std::copy_n(source.data() + from, n, want.data() + to);
      ASSERT_EQ(got, want) << n << " bytes at " << to;
    }
  }
}

}  // namespace
}  // namespace reshard
