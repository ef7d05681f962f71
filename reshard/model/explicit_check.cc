// SPDX-License-Identifier: Apache-2.0
// Are the parts of a local tensor disjoint? Sort them along one dimension and split them wherever
// no part crosses; go on with each group along the next dimension, until every dimension leaves the
// group whole. What remains are parts that interleave (with gaps) or interlock (as a pinwheel
// does), a few each time: compare these pair by pair. Cost: n log n per level of splitting; a
// budget bounds the levels and the pairs, so that no input takes long.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reshard/model/explicit_slots.h"

namespace reshard {
namespace {

constexpr std::int64_t kVisitsPerPart = 256;
constexpr std::int64_t kMaxPairs = std::int64_t{1} << 24;

/// The indices first, first + step, ..., last.
struct Run {
  Index first = 0, last = 0, step = 1;
};

/// x with a * x = 1 modulo m. @pre gcd(a, m) == 1, m >= 1
Index inverse(Index a, Index m) {
  Index x = 1, y = 0;
  for (Index b = m; b != 0;) {
    const Index q = a / b;
    a = std::exchange(b, a - q * b);
    x = std::exchange(y, x - q * y);
  }
  return (x % m + m) % m;
}

bool meet(const Run& a, const Run& b) {
  const Index low = std::max(a.first, b.first), high = std::min(a.last, b.last);
  if (low > high) return false;
  if (a.step == 1 && b.step == 1) return true;
  const Index common = std::gcd(a.step, b.step);
  const Index apart = b.first - a.first;
  if (apart % common != 0) return false;
  // The members of `a` that are members of b's residue class: one per `period`.
  const Index m = b.step / common, period = a.step * m;
  const Index i = ((apart / common) % m + m) % m * inverse(a.step / common % m, m) % m;
  Index x = a.first + i * a.step;
  if (x < low) x += (low - x + period - 1) / period * period;
  return x <= high;
}

using Runs = std::array<Run, kMaxDims>;

class Disjoint {
 public:
  Disjoint(const std::vector<Runs>& parts, int rank)
      : parts_(parts),
        rank_(rank),
        order_(parts.size()),
        visits_(kVisitsPerPart * static_cast<std::int64_t>(parts.size())) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }

  /// Two parts that share an element, or none. Errors: the budget.
  Result<std::optional<std::pair<std::size_t, std::size_t>>> find_overlap() {
    if (parts_.size() > 1) open_.push_back({0, parts_.size(), 0, 0});
    while (!open_.empty()) {
      const Group g = open_.back();
      open_.pop_back();
      if (g.tried == rank_) {
        if (auto pair = RESHARD_TRY(compare(g))) return pair;
        continue;
      }
      visits_ -= static_cast<std::int64_t>(g.end - g.begin);
      if (visits_ < 0) return too_deep();
      split(g);
    }
    return std::optional<std::pair<std::size_t, std::size_t>>{};
  }

 private:
  struct Group {
    std::size_t begin = 0, end = 0;  ///< of order_.
    int dim = 0, tried = 0;          ///< dimensions in a row that left the group whole.
  };

  const Run& run(std::size_t i, int dim) const {
    return parts_[order_[i]][static_cast<std::size_t>(dim)];
  }

  void split(const Group& g) {
    const auto at = [&](std::size_t i) { return order_.begin() + static_cast<std::ptrdiff_t>(i); };
    std::sort(at(g.begin), at(g.end), [&](std::size_t a, std::size_t b) {
      const auto d = static_cast<std::size_t>(g.dim);
      return std::tie(parts_[a][d].first, a) < std::tie(parts_[b][d].first, b);
    });
    const int next = (g.dim + 1) % rank_;
    std::size_t begin = g.begin;
    Index reach = run(begin, g.dim).last;
    for (std::size_t i = begin + 1; i <= g.end; ++i) {
      if (i < g.end && run(i, g.dim).first <= reach) {
        reach = std::max(reach, run(i, g.dim).last);
        continue;
      }
      const bool whole = begin == g.begin && i == g.end;
      if (i - begin > 1) open_.push_back({begin, i, next, whole ? g.tried + 1 : 1});
      if (i == g.end) break;
      begin = i;
      reach = run(i, g.dim).last;
    }
  }

  Result<std::optional<std::pair<std::size_t, std::size_t>>> compare(const Group& g) {
    for (std::size_t i = g.begin; i < g.end; ++i)
      for (std::size_t j = i + 1; j < g.end; ++j) {
        if (++pairs_ > kMaxPairs) return too_deep();
        bool overlap = true;
        for (int d = 0; d < rank_ && overlap; ++d) overlap = meet(run(i, d), run(j, d));
        if (overlap)
          return std::pair(std::min(order_[i], order_[j]), std::max(order_[i], order_[j]));
      }
    return std::optional<std::pair<std::size_t, std::size_t>>{};
  }

  static tl::unexpected<Error> too_deep() {
    return fail(Code::unsupported, "its parts are interlocked too deeply to be compared");
  }

  const std::vector<Runs>& parts_;
  const int rank_;
  std::vector<std::size_t> order_;
  std::vector<Group> open_;
  std::int64_t visits_, pairs_ = 0;
};

/// The part's indices along each full dimension. Errors: it is no box of its tensor, or leaves the
/// shape.
Result<Runs> runs_of(const PlacedBox& p, const Dims& shape, const ModelSpec& model) {
  const auto wrong = [](std::string what) { return fail(Code::invalid_argument, std::move(what)); };
  if (p.tensor.value() < 0 || p.tensor.value() >= model.size())
    return wrong(fmt::format("there is no tensor {}", p.tensor.value()));
  const CanonicalTensor& t = model[p.tensor];
  if (p.box.rank() != t.shape.size() || p.box.empty() || !contains(Box::whole(t.shape), p.box))
    return wrong(
        fmt::format("{} is not a box of '{}' {}", to_string(p.box), t.name, to_string(t.shape)));
  if (p.at.size() != shape.size())
    return wrong(fmt::format("begins at {}, which has not one index per dimension of {}",
                             to_string(p.at), to_string(shape)));
  Runs runs;
  for (int k = 0; k < shape.size(); ++k) runs[static_cast<std::size_t>(k)] = {p.at[k], p.at[k], 1};
  unsigned mapped = 0;
  for (int i = 0; i < p.box.rank(); ++i) {
    const int k = p.dims[static_cast<std::size_t>(i)];
    if (k < 0 || k >= shape.size() || (mapped >> k & 1U) != 0)
      return wrong(fmt::format("dimension {} of '{}' needs a dimension of {} of its own", i, t.name,
                               to_string(shape)));
    mapped |= 1U << k;
    if (p.gaps[static_cast<std::size_t>(i)] < 0) return wrong("a gap is negative");
    // Divided, because the product may overflow.
    const Index room = shape[k] - 1 - p.at[k];
    if (p.at[k] < 0 || room < 0 || (p.box[i].size() - 1) > room / p.step(i))
      return wrong(fmt::format("{} of '{}' at {} reaches outside {}", to_string(p.box), t.name,
                               to_string(p.at), to_string(shape)));
    runs[static_cast<std::size_t>(k)] = {p.at[k], p.at[k] + (p.box[i].size() - 1) * p.step(i),
                                         p.step(i)};
  }
  for (int k = 0; k < shape.size(); ++k)
    if (p.at[k] < 0 || p.at[k] >= shape[k])
      return wrong(fmt::format("begins at {}, outside {}", to_string(p.at), to_string(shape)));
  return runs;
}

Result<> check(const ExplicitTensor& tensor, const ModelSpec& model) {
  Index size = 1;
  bool fits = true, empty = false;
  for (Index d : tensor.shape) {
    empty |= d == 0;
    fits = fits && d >= 0 && !__builtin_mul_overflow(size, std::max<Index>(d, 1), &size);
  }
  if (!fits || !bytes_of(tensor.dtype, empty ? 0 : size))
    return fail(Code::invalid_argument, fmt::format("shape {} of {} is not a possible size",
                                                    to_string(tensor.shape), name(tensor.dtype)));
  if (tensor.shape.size() > 0 && tensor.merged.bits >> (tensor.shape.size() - 1) != 0)
    return fail(Code::invalid_argument, "merges more dimensions than there are");
  std::vector<Runs> parts;
  Index covered = 0;
  for (const PlacedBox& part : tensor.parts) {
    auto runs = runs_of(part, tensor.shape, model);
    if (!runs)
      return tl::unexpected(std::move(runs).error().in(fmt::format("part {}", parts.size() + 1)));
    parts.push_back(*runs);
    // Disjoint parts add up to the size at most; others are found below.
    if (__builtin_add_overflow(covered, part.box.volume(), &covered)) covered = size;
  }
  if (auto pair = RESHARD_TRY(Disjoint(parts, std::max(tensor.shape.size(), 1)).find_overlap()))
    return fail(Code::invalid_argument,
                fmt::format("parts {} and {} overlap", pair->first + 1, pair->second + 1));
  if (covered != (empty ? 0 : size) && !tensor.padded)
    return fail(Code::invalid_argument,
                fmt::format("{} of {} elements belong to no canonical tensor and are not declared "
                            "padding",
                            size - covered, size));
  return {};
}

}  // namespace

Result<> check_explicit(const ExplicitTensor& tensor, const ModelSpec& model) {
  auto checked = check(tensor, model);
  if (checked) return checked;
  return tl::unexpected(
      std::move(checked).error().in(fmt::format("local tensor '{}'", tensor.name)));
}

}  // namespace reshard
