// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/merge.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "reshard/transform/convert.h"

namespace reshard {
namespace {

void convert(const std::byte* from, DType dtype, std::byte* to, DType to_dtype, Index count) {
  if (dtype == to_dtype)
    std::memcpy(to, from, static_cast<std::size_t>(count * bits(dtype) / 8));
  else
    convert_values({{dtype, ValueMap::identity}, {to_dtype, ValueMap::identity}}, from, to, count);
}

void to_floats(const StoredValues& values, Index first, Index count, float* out) {
  convert(values.data + first * bits(values.dtype) / 8, values.dtype,
          reinterpret_cast<std::byte*>(out), DType::f32, count);
}

std::vector<float> all_floats(const StoredValues& values, Index count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  to_floats(values, 0, count, out.data());
  return out;
}

template <class T>
T load(const float* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// A matrix [rank, cols] in blocks of so many columns, one after another, whose sums stay in
/// registers. The last block ends with zeros.
class BlockedMatrix {
 public:
  static constexpr Index kColumns = 16;
  using Block = std::array<float, kColumns>;

  /// @param is_transposed `values` has [cols, rank]
  BlockedMatrix(const StoredValues& values, Index rank, Index cols, bool is_transposed)
      : rank_(static_cast<std::size_t>(rank)),
        blocks_(static_cast<std::size_t>((cols + kColumns - 1) / kColumns) * rank_) {
    const std::vector<float> floats = all_floats(values, rank * cols);
    const Index of_rank = is_transposed ? 1 : cols, of_col = is_transposed ? rank : 1;
    for (Index k = 0; k < rank; ++k)
      for (Index col = 0; col < cols; ++col)
        block(col)[k][static_cast<std::size_t>(col % kColumns)] =
            floats[static_cast<std::size_t>(k * of_rank + col * of_col)];
  }

  /// The products of a row [rank] and the columns of the block of `col`.
  Block times(const std::vector<float>& row, Index col) const {
    using Lanes [[gnu::vector_size(16)]] = float;
    const Block* at = &blocks_[static_cast<std::size_t>(col / kColumns) * rank_];
    Lanes a{}, b{}, c{}, d{};
    for (const float factor : row) {
      const float* const with = at++->data();
      a += factor * load<Lanes>(with);
      b += factor * load<Lanes>(with + 4);
      c += factor * load<Lanes>(with + 8);
      d += factor * load<Lanes>(with + 12);
    }
    Block out;
    const Lanes sums[] = {a, b, c, d};
    std::memcpy(&out, sums, sizeof sums);
    return out;
  }

 private:
  Block* block(Index col) { return &blocks_[static_cast<std::size_t>(col / kColumns) * rank_]; }

  std::size_t rank_;
  std::vector<Block> blocks_;  ///< [blocks of columns][rank].
};

/// A change as the product of a row for each row of the weight and a matrix: of b and a or, if the
/// weight is transposed, of a^T and b^T.
class Product {
 public:
  Product(const LowRankChange& change, const MergedTensor& weight)
      : change_(change),
        rows_(weight.rows),
        matrix_(change.transposed ? change.b : change.a, change.rank, weight.cols,
                change.transposed),
        row_(static_cast<std::size_t>(change.rank)) {}

  /// Adds the change of the columns [begin, end) of a row.
  void add(Index row, Index begin, Index end, float* out) {
    take_row(row);
    for (Index col = begin; col < end;) {
      const Index first = col / BlockedMatrix::kColumns * BlockedMatrix::kColumns;
      const BlockedMatrix::Block sum = matrix_.times(row_, col);
      for (const Index stop = std::min(end, first + BlockedMatrix::kColumns); col < stop; ++col)
        out[col - begin] += change_.scale * sum[static_cast<std::size_t>(col - first)];
    }
  }

 private:
  void take_row(Index row) {
    const Index rank = change_.rank;
    if (!change_.transposed) return to_floats(change_.b, row * rank, rank, row_.data());
    for (Index k = 0; k < rank; ++k) to_floats(change_.a, k * rows_ + row, 1, row_.data() + k);
  }

  const LowRankChange& change_;
  Index rows_;
  BlockedMatrix matrix_;
  std::vector<float> row_;
};

/// Elements [first, first + count) of the base, in dtype `to`.
void take_base(const MergedTensor& tensor, Index first, Index count, DType to, std::byte* out) {
  if (const auto* codes = std::get_if<CodedTensor>(&tensor.base))
    return decode(*codes, first, count, to, out);
  const auto& values = std::get<StoredValues>(tensor.base);
  convert(values.data + first * bits(values.dtype) / 8, values.dtype, out, to, count);
}

}  // namespace

void merge(const MergedTensor& tensor, Index first, Index count, DType to, std::byte* out) {
  take_base(tensor, first, count, to, out);
  if (tensor.changes.empty()) return;
  std::vector<Product> products;
  for (const LowRankChange& change : tensor.changes) products.emplace_back(change, tensor);
  std::vector<float> values;
  for (Index at = first; at < first + count;) {
    const Index row = at / tensor.cols, col = at % tensor.cols;
    const Index n = std::min(tensor.cols - col, first + count - at);
    std::byte* const here = out + (at - first) * bits(to) / 8;
    values.resize(static_cast<std::size_t>(n));
    to_floats({here, to}, 0, n, values.data());
    for (Product& product : products) product.add(row, col, col + n, values.data());
    convert(reinterpret_cast<const std::byte*>(values.data()), DType::f32, here, to, n);
    at += n;
  }
}

}  // namespace reshard
