// SPDX-License-Identifier: Apache-2.0
// Optimal string alignment: row i, column j of the table is the number of edits that make the first
// j characters of `name` from the first i of `text`. Only the band of columns that `limit` edits
// can reach is computed, so a name costs at most (2 limit + 1) * size.
#include "reshard/base/closest_name.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace reshard {
namespace {

/// Longer texts are no misspelt names.
constexpr std::size_t kMaxText = 256;

char folded(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

std::string folded(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return folded(c); });
  return out;
}

/// True if `shorter` is the last components of `longer`.
bool is_end_of(std::string_view longer, std::string_view shorter) {
  return !shorter.empty() && longer.size() > shorter.size() && longer.ends_with(shorter) &&
         longer[longer.size() - shorter.size() - 1] == '.';
}

std::size_t common_beginning(std::string_view a, std::string_view b) {
  std::size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

/// Counts edits between one text and many names.
class EditCounter {
 public:
  explicit EditCounter(std::string_view text) : text_(text) {}

  /// The number of edits, or limit + 1 if there are more.
  std::size_t count(std::string_view name, std::size_t limit) {
    const std::size_t m = text_.size(), n = name.size(), more = limit + 1;
    if ((m > n ? m - n : n - m) > limit) return more;
    for (auto& row : rows_) row.assign(n + 1, more);
    for (std::size_t j = 0; j <= std::min(n, limit); ++j) rows_[1][j] = j;
    for (std::size_t i = 1; i <= m; ++i) {
      std::rotate(rows_.begin(), rows_.begin() + 1, rows_.end());
      if (fill_row(name, i, limit) > limit) return more;
    }
    return std::min(rows_[1][n], more);
  }

 private:
  /// Fills row i from the two before it, which are rows_[0] and rows_[2] after the rotation.
  std::size_t fill_row(std::string_view name, std::size_t i, std::size_t limit) {
    auto& [before, row, two_before] = rows_;
    const std::size_t n = name.size(), more = limit + 1;
    const std::size_t begin = i > limit ? i - limit : 0, end = std::min(n, i + limit);
    std::fill(row.begin(), row.end(), more);
    std::size_t least = more;
    for (std::size_t j = begin; j <= end; ++j) {
      std::size_t edits = before[j] + 1;
      if (j > 0) {
        const bool same = text_[i - 1] == name[j - 1];
        edits = std::min({edits, row[j - 1] + 1, before[j - 1] + (same ? 0 : 1)});
        if (i > 1 && j > 1 && text_[i - 1] == name[j - 2] && text_[i - 2] == name[j - 1])
          edits = std::min(edits, two_before[j - 2] + 1);
      }
      row[j] = std::min(edits, more);
      least = std::min(least, row[j]);
    }
    return least;
  }

  std::string_view text_;
  std::array<std::vector<std::size_t>, 3> rows_;
};

}  // namespace

std::optional<std::string_view> closest_name(std::string_view text,
                                             const std::vector<std::string_view>& names) {
  if (text.empty() || text.size() > kMaxText) return std::nullopt;
  for (const std::string_view name : names)
    if (is_end_of(name, text) || is_end_of(text, name)) return name;
  const std::string wanted = folded(text);
  EditCounter counter(wanted);
  std::optional<std::string_view> best;
  std::size_t limit = wanted.size() / 3, common = 0;
  for (const std::string_view name : names) {
    const std::string other = folded(name);
    const std::size_t edits = counter.count(other, limit);
    const std::size_t begin = common_beginning(wanted, other);
    if (edits > limit || (best && edits == limit && begin <= common)) continue;
    best = name;
    limit = edits;
    common = begin;
  }
  return best;
}

std::string did_you_mean_one_of(std::string_view text, std::string_view names) {
  constexpr std::string_view kBetween = ", ";
  std::vector<std::string_view> list;
  for (std::size_t at = 0; at <= names.size();) {
    const std::size_t end = std::min(names.find(kBetween, at), names.size());
    list.push_back(names.substr(at, end - at));
    at = end + kBetween.size();
  }
  return did_you_mean(text, list);
}

}  // namespace reshard
