// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace reshard {

/// A few bytes by which a peer finds memory, as a Wire chooses them; empty where it cannot. A value
/// without memory of its own, because there is one for every message.
class WireAddress {
 public:
  static constexpr std::size_t kMost = 64;

  WireAddress() = default;
  /// The bytes of a plain struct.
  template <class T>
  static WireAddress of(const T& value) {
    static_assert(sizeof value <= kMost && std::is_trivially_copyable_v<T>);
    WireAddress place;
    std::memcpy(place.bytes_.data(), &value, sizeof value);
    place.size_ = sizeof value;
    return place;
  }

  bool empty() const { return size_ == 0; }
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, kMost> bytes_;  // what lies behind size_ is never read
  std::uint8_t size_ = 0;
};

}  // namespace reshard
