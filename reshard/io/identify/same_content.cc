// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/same_content.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "reshard/io/checkpoint/pieces.h"

namespace reshard::identify {
namespace {

/// The elements of a piece in memory.
class PieceBytes {
 public:
  PieceBytes(const Checkpoint& checkpoint, const StoredPiece& piece)
      : bytes_(checkpoint.data(*piece.tensor)),
        origin_(piece.box.origin()),
        strides_(Dims::filled(piece.box.rank(), 0)) {
    Index step = bits(piece.tensor->dtype) / 8;
    for (int i = piece.box.rank() - 1; i >= 0; --i) {
      const auto dim = static_cast<int>(piece.order[i]);
      strides_[dim] = step;
      step *= piece.box[dim].size();
    }
  }
  const std::byte* at(const Dims& index) const {
    Index offset = 0;
    for (int i = 0; i < index.size(); ++i) offset += (index[i] - origin_[i]) * strides_[i];
    return bytes_.data() + offset;
  }
  /// Bytes from one element to the next along the last dimension.
  Index last_stride() const { return strides_.size() == 0 ? 0 : strides_[strides_.size() - 1]; }

 private:
  std::span<const std::byte> bytes_;
  Dims origin_, strides_;
};

bool same_run(const std::byte* a, Index step_a, const std::byte* b, Index step_b, Index count,
              Index size) {
  if (step_a == size && step_b == size)
    return std::memcmp(a, b, static_cast<std::size_t>(count * size)) == 0;
  for (Index i = 0; i < count; ++i)
    if (std::memcmp(a + i * step_a, b + i * step_b, static_cast<std::size_t>(size)) != 0)
      return false;
  return true;
}

/// Compares the elements in a box that lies in both, one run along the last dimension after
/// another.
bool same_in(const Box& box, const PieceBytes& a, const PieceBytes& b, Index size) {
  const int last = box.rank() - 1;
  Dims at = box.origin();
  while (true) {
    const Index count = last < 0 ? 1 : box[last].size();
    if (!same_run(a.at(at), a.last_stride(), b.at(at), b.last_stride(), count, size)) return false;
    int i = last - 1;
    while (i >= 0 && ++at[i] == box[i].end()) {
      at[i] = box[i].begin();
      --i;
    }
    if (i < 0) return true;
  }
}

/// Compares what lies in both pieces.
bool same_in_both(const Checkpoint& checkpoint, const StoredPiece& a, const StoredPiece& b,
                  const Box& both) {
  const DType dtype = a.tensor->dtype;
  if (a.box == b.box && a.order == b.order) {
    const auto x = checkpoint.data(*a.tensor), y = checkpoint.data(*b.tensor);
    return std::memcmp(x.data(), y.data(), x.size()) == 0;
  }
  if (bits(dtype) % 8 != 0) return false;  // not compared piece by piece
  return same_in(both, PieceBytes(checkpoint, a), PieceBytes(checkpoint, b), bits(dtype) / 8);
}

Index elements(const std::vector<StoredPiece>& pieces) {
  Index sum = 0;
  for (const StoredPiece& piece : pieces) sum += piece.box.volume();
  return sum;
}

}  // namespace

std::vector<StoredPiece> stored_as(const Checkpoint& checkpoint, const std::string& name) {
  std::vector<StoredPiece> out;
  if (checkpoint.kind() == Checkpoint::Kind::hf) {
    const auto* whole = find_tensor(checkpoint.tensors(), name);
    if (whole == nullptr) return out;
    Dims order = whole->shape;
    for (int i = 0; i < order.size(); ++i) order[i] = i;
    out.push_back({Box::whole(whole->shape), order, whole});
    return out;
  }
  const TensorPieces& pieces = checkpoint.pieces();
  for (const TensorPiece& piece : pieces.pieces)
    if (pieces.tensors[piece.tensor].name == name)
      out.push_back(
          {piece.box, piece.order, find_tensor(checkpoint.tensors(Rank(0)), piece.local)});
  std::ranges::sort(out, [](const auto& x, const auto& y) { return before(x.box, y.box); });
  return out;
}

bool same_content(const Checkpoint& checkpoint, const std::string& a, const std::string& b) {
  return elements(stored_as(checkpoint, a)) == elements(stored_as(checkpoint, b)) &&
         same_as_part(checkpoint, a, b, {});
}

bool same_as_part(const Checkpoint& checkpoint, const std::string& part, const std::string& whole,
                  const Dims& at) {
  std::vector<StoredPiece> x = stored_as(checkpoint, part);
  const std::vector<StoredPiece> y = stored_as(checkpoint, whole);
  Index compared = 0;
  bool same = true;
  for (StoredPiece& piece : x) {
    same = same && (at.size() == 0 || at.size() == piece.box.rank());
    if (same && at.size() > 0) piece.box = shift(piece.box, at);
  }
  for (const StoredPiece& p : x)
    for (const StoredPiece& q : y) {
      if (!same) break;
      same = p.box.rank() == q.box.rank() && p.tensor->dtype == q.tensor->dtype;
      const Box both = same ? intersect(p.box, q.box) : Box();
      if (!same || both.empty()) continue;
      compared += both.volume();
      same = same_in_both(checkpoint, p, q, both);
    }
  for (const std::vector<StoredPiece>* pieces : {&std::as_const(x), &y})
    for (const StoredPiece& piece : *pieces) checkpoint.drop(*piece.tensor);
  return same && compared == elements(x);
}

}  // namespace reshard::identify
