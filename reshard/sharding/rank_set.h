// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/index/interval.h"

namespace reshard {

/// A set of ranks, one bit each. Normal form: no trailing zero words, so `==` is set equality.
class RankSet {
 public:
  RankSet() = default;
  /// {begin, ..., end - 1}. @pre 0 <= begin <= end
  static RankSet range(Index begin, Index end);

  void insert(Rank r);
  bool contains(Rank r) const {
    const std::size_t w = r.index() / 64;
    return w < words_.size() && (words_[w] >> (r.index() % 64) & 1) != 0;
  }
  bool empty() const { return words_.empty(); }
  Index size() const;
  /// The number of members below r.
  Index count_below(Rank r) const;
  /// The member that has `n` members below it. @pre 0 <= n < size()
  Rank nth(Index n) const;
  /// The next member above r. @pre there is one
  Rank after(Rank r) const;
  /// Calls f(Rank) for each member, ascending.
  template <class F>
  void for_each(F&& f) const {
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::uint64_t bits = words_[w]; bits != 0; bits &= bits - 1)
        f(Rank(static_cast<Rank::rep>(w * 64 + static_cast<std::size_t>(std::countr_zero(bits)))));
  }
  std::vector<Rank> members() const;
  std::uint64_t hash() const;
  friend bool operator==(const RankSet&, const RankSet&) = default;

  friend RankSet operator&(const RankSet& a, const RankSet& b);
  friend RankSet operator|(const RankSet& a, const RankSet& b);
  /// Members of a that are not in b.
  friend RankSet operator-(const RankSet& a, const RankSet& b);

 private:
  void trim();
  std::vector<std::uint64_t> words_;
};

/// "{0-7, 16, 18}"
std::string to_string(const RankSet& ranks);

}  // namespace reshard
