// SPDX-License-Identifier: Apache-2.0
#include "reshard/sharding/rank_set.h"

#include <algorithm>

#include "reshard/base/hash.h"

namespace reshard {

RankSet RankSet::range(Index begin, Index end) {
  RankSet s;
  if (begin >= end) return s;
  s.words_.assign(static_cast<std::size_t>((end + 63) / 64), 0);
  for (Index i = begin; i < end; ++i)
    s.words_[static_cast<std::size_t>(i / 64)] |= std::uint64_t{1} << (i % 64);
  return s;
}

void RankSet::insert(Rank r) {
  const std::size_t w = r.index() / 64;
  if (w >= words_.size()) words_.resize(w + 1, 0);
  words_[w] |= std::uint64_t{1} << (r.index() % 64);
}

Index RankSet::size() const {
  Index n = 0;
  for (std::uint64_t w : words_) n += std::popcount(w);
  return n;
}

Index RankSet::count_below(Rank r) const {
  const std::size_t w = std::min(r.index() / 64, words_.size());
  Index n = 0;
  for (std::size_t i = 0; i < w; ++i) n += std::popcount(words_[i]);
  if (w < words_.size())
    n += std::popcount(words_[w] & ((std::uint64_t{1} << (r.index() % 64)) - 1));
  return n;
}

Rank RankSet::nth(Index n) const {
  std::size_t w = 0;
  for (Index in = std::popcount(words_[0]); n >= in; in = std::popcount(words_[++w])) n -= in;
  std::uint64_t bits = words_[w];
  for (; n > 0; --n) bits &= bits - 1;
  return Rank(static_cast<Rank::rep>(w * 64 + static_cast<std::size_t>(std::countr_zero(bits))));
}

Rank RankSet::after(Rank r) const {
  const std::size_t next = r.index() + 1;
  std::size_t w = next / 64;
  std::uint64_t bits = words_[w] & (~std::uint64_t{0} << next % 64);
  while (bits == 0) bits = words_[++w];
  return Rank(static_cast<Rank::rep>(w * 64 + static_cast<std::size_t>(std::countr_zero(bits))));
}

std::vector<Rank> RankSet::members() const {
  std::vector<Rank> out;
  for_each([&](Rank r) { out.push_back(r); });
  return out;
}

std::uint64_t RankSet::hash() const {
  std::uint64_t h = 0;
  for (std::uint64_t w : words_) h = mix64(h ^ w);
  return h;
}

void RankSet::trim() {
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

RankSet operator&(const RankSet& a, const RankSet& b) {
  RankSet s;
  s.words_.resize(std::min(a.words_.size(), b.words_.size()));
  for (std::size_t i = 0; i < s.words_.size(); ++i) s.words_[i] = a.words_[i] & b.words_[i];
  s.trim();
  return s;
}

RankSet operator|(const RankSet& a, const RankSet& b) {
  RankSet s = a.words_.size() >= b.words_.size() ? a : b;
  const RankSet& shorter = a.words_.size() >= b.words_.size() ? b : a;
  for (std::size_t i = 0; i < shorter.words_.size(); ++i) s.words_[i] |= shorter.words_[i];
  return s;
}

RankSet operator-(const RankSet& a, const RankSet& b) {
  RankSet s = a;
  for (std::size_t i = 0; i < std::min(s.words_.size(), b.words_.size()); ++i)
    s.words_[i] &= ~b.words_[i];
  s.trim();
  return s;
}

std::string to_string(const RankSet& ranks) {
  std::string text = "{";
  const auto all = ranks.members();
  for (std::size_t i = 0; i < all.size();) {
    std::size_t j = i;
    while (j + 1 < all.size() && all[j + 1].value() == all[j].value() + 1) ++j;
    text += (text.size() > 1 ? ", " : "") + std::to_string(all[i].value());
    if (j > i) text += "-" + std::to_string(all[j].value());
    i = j + 1;
  }
  return text + "}";
}

}  // namespace reshard
