// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <type_traits>

namespace reshard {

/// An integer id of one kind, which does not convert to ids of other kinds.
template <class Tag, class Rep = std::int32_t>
class StrongInt {
 public:
  using rep = Rep;
  constexpr StrongInt() = default;
  explicit constexpr StrongInt(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  /// The value as an array index. @pre value() >= 0
  constexpr std::size_t index() const { return static_cast<std::size_t>(value_); }
  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;

 private:
  Rep value_ = 0;
};

/// A process that holds weights. Ranks count from 0 over source and target together.
using Rank = StrongInt<struct RankTag>;
/// A canonical tensor: its index in the ModelSpec.
using TensorId = StrongInt<struct TensorIdTag>;

static_assert(!std::is_convertible_v<Rank, TensorId> && !std::is_convertible_v<int, Rank>);

}  // namespace reshard

template <class Tag, class Rep>
struct std::hash<reshard::StrongInt<Tag, Rep>> {
  std::size_t operator()(reshard::StrongInt<Tag, Rep> id) const {
    return std::hash<Rep>{}(id.value());
  }
};
