// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/delta/delta_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "reshard/base/check.h"

namespace reshard {
namespace {

constexpr unsigned kMaxUnary = 24;
constexpr unsigned kGapBits = 21;
static_assert(kDeltaBlockBytes * 2 == std::size_t{1} << kGapBits, "gaps of nibbles fit");
/// Nibbles are looked at if at most one of so many bytes changed: else they save little.
constexpr std::size_t kBytesPerChange = 4;
/// The form, both parameters and the number of changes, at most.
constexpr std::size_t kMaxHead = 3 + 3;

bool is_width(int width) { return width == 1 || width == 2 || width == 4 || width == 8; }

constexpr std::uint64_t low_bits(std::uint64_t value, unsigned bits) {
  return bits >= 64 ? value : value & ((std::uint64_t{1} << bits) - 1);
}

/// Writes bits into memory that is large enough for them and 8 bytes more.
class BitWriter {
 public:
  explicit BitWriter(std::byte* to) : to_(to) {}

  /// @pre bits <= 32, value < 2^bits
  void put(std::uint64_t value, unsigned bits) {
    word_ |= value << used_;
    used_ += bits;
    std::memcpy(to_, &word_, sizeof word_);
    to_ += used_ / 8;
    word_ >>= used_ / 8 * 8;
    used_ %= 8;
  }
  void put_rice(std::uint64_t value, unsigned k, unsigned bits) {
    const std::uint64_t q = value >> k;
    if (q >= kMaxUnary) {
      put((1U << kMaxUnary) - 1, kMaxUnary);
      put_wide(value, bits);
      return;
    }
    put((1U << q) - 1, static_cast<unsigned>(q) + 1);
    put_wide(low_bits(value, k), k);
  }
  std::byte* end() const { return to_ + (used_ > 0 ? 1 : 0); }

 private:
  void put_wide(std::uint64_t value, unsigned bits) {
    if (bits > 32) {
      put(low_bits(value, 32), 32);
      put(value >> 32, bits - 32);
    } else {
      put(value, bits);
    }
  }

  std::byte* to_;
  std::uint64_t word_ = 0;
  unsigned used_ = 0;
};

/// Reads what a BitWriter wrote from untrusted bytes. Beyond their end there are zeros; ends_well()
/// says whether any of those were read.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> from) : from_(from) {}

  /// @pre bits <= 32
  std::uint64_t take(unsigned bits) {
    refill();
    const std::uint64_t value = low_bits(word_, bits);
    skip(bits);
    return value;
  }
  std::uint64_t take_rice(unsigned k, unsigned bits) {
    refill();
    const auto q = static_cast<unsigned>(std::countr_one(word_));
    if (q >= kMaxUnary) {
      skip(kMaxUnary);
      return take_wide(bits);
    }
    skip(q + 1);
    return static_cast<std::uint64_t>(q) << k | take_wide(k);
  }
  bool past_end() const { return taken_ > from_.size() * 8; }
  /// True if all bytes were read, and what is left of the last one is zero.
  bool ends_well() const { return !past_end() && from_.size() * 8 - taken_ < 8 && word_ == 0; }

 private:
  void refill() {
    if (at_ + sizeof(std::uint64_t) <= from_.size()) {
      std::uint64_t next = 0;
      std::memcpy(&next, from_.data() + at_, sizeof next);
      word_ |= next << held_;
      const unsigned bytes = (63 - held_) / 8;
      at_ += bytes;
      held_ += bytes * 8;
      word_ = low_bits(word_, held_);
      return;
    }
    for (; held_ <= 56 && at_ < from_.size(); held_ += 8)
      word_ |= std::to_integer<std::uint64_t>(from_[at_++]) << held_;
  }
  void skip(unsigned bits) {
    word_ = bits >= 64 ? 0 : word_ >> bits;
    held_ -= std::min(held_, bits);
    taken_ += bits;
  }
  std::uint64_t take_wide(unsigned bits) {
    if (bits <= 32) return take(bits);
    const std::uint64_t low = take(32);
    return low | take(bits - 32) << 32;
  }

  std::span<const std::byte> from_;
  std::size_t at_ = 0;
  std::uint64_t word_ = 0;
  unsigned held_ = 0;
  std::size_t taken_ = 0;
};

/// How many numbers have 0, 1, 2, ... 64 bits.
using Histogram = std::array<std::uint32_t, 65>;

struct RiceChoice {
  unsigned k = 0;
  std::uint64_t bits = 0;  ///< estimated, of all codes together.
};

/// The parameter with the shortest codes, if the numbers of one length are spread evenly.
RiceChoice choose_rice(const Histogram& lengths, unsigned bits) {
  RiceChoice best{0, ~std::uint64_t{0}};
  for (unsigned k = 0; k < bits; ++k) {
    std::uint64_t sum = 0;
    for (unsigned length = 0; length < lengths.size(); ++length) {
      if (lengths[length] == 0) continue;
      const std::uint64_t middle = length < 2 ? length : std::uint64_t{3} << (length - 2);
      const std::uint64_t q = middle >> k;
      sum += lengths[length] * (q < kMaxUnary ? q + 1 + k : kMaxUnary + bits);
    }
    if (sum < best.bits) best = {k, sum};
  }
  return best;
}

template <class T>
Histogram lengths_of(const std::vector<T>& numbers) {
  Histogram lengths{};
  for (const T number : numbers) ++lengths[static_cast<std::size_t>(std::bit_width(number))];
  return lengths;
}

template <class T>
T load(const std::byte* from) {
  T value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// z(next - base) - 1. @pre they differ
template <class T>
std::uint64_t change_between(T base, T next) {
  const T difference = static_cast<T>(next - base);
  const T sign = static_cast<T>(difference >> (sizeof(T) * 8 - 1) != 0 ? ~T{0} : T{0});
  return static_cast<std::uint64_t>(static_cast<T>(static_cast<T>(difference << 1) ^ sign)) - 1;
}

template <class T>
T changed(T base, std::uint64_t change) {
  const std::uint64_t zigzag = change + 1;
  return static_cast<T>(base + static_cast<T>(zigzag >> 1 ^ (~(zigzag & 1) + 1)));
}

/// Appends the gap and the change of each element that differs.
template <class T>
void find_changes(std::span<const std::byte> base, std::span<const std::byte> next,
                  std::vector<std::uint32_t>& gaps, std::vector<std::uint64_t>& changes) {
  constexpr std::size_t kLine = 64;
  std::size_t unchanged_from = 0;
  for (std::size_t line = 0; line < next.size(); line += kLine) {
    const std::size_t end = std::min(line + kLine, next.size());
    if (std::memcmp(base.data() + line, next.data() + line, end - line) == 0) continue;
    for (std::size_t at = line; at < end; at += sizeof(T)) {
      const T before = load<T>(base.data() + at), after = load<T>(next.data() + at);
      if (before == after) continue;
      gaps.push_back(static_cast<std::uint32_t>((at - unchanged_from) / sizeof(T)));
      changes.push_back(change_between(before, after));
      unchanged_from = at + sizeof(T);
    }
  }
}

std::byte* put_number(std::byte* to, std::size_t number) {
  for (; number >= 0x80; number >>= 7) *to++ = static_cast<std::byte>(number | 0x80);
  *to++ = static_cast<std::byte>(number);
  return to;
}

Result<> is_corrupt(const std::string& why) {
  return fail(Code::corrupt, "code of a delta: " + why);
}

/// The beginning of a sparse code.
struct SparseHead {
  unsigned gap_k = 0, change_k = 0;
  std::size_t changes = 0;
  std::span<const std::byte> bits;
};

Result<SparseHead> parse_head(std::span<const std::byte> code, unsigned bits,
                              std::size_t elements) {
  SparseHead head;
  const auto short_of = [] { return is_corrupt("ends in its first bytes"); };
  if (code.size() < 4) return tl::unexpected(short_of().error());
  head.gap_k = std::to_integer<unsigned>(code[1]);
  head.change_k = std::to_integer<unsigned>(code[2]);
  std::size_t at = 3;
  for (unsigned shift = 0; at < kMaxHead && at < code.size(); shift += 7) {
    const auto byte = std::to_integer<std::size_t>(code[at++]);
    head.changes |= (byte & 0x7f) << shift;
    if (byte < 0x80) break;
    if (at == code.size() || at == kMaxHead) return tl::unexpected(short_of().error());
  }
  head.bits = code.subspan(at);
  if (head.gap_k >= kGapBits || head.change_k >= bits)
    return tl::unexpected(is_corrupt(fmt::format("its parameters are {} and {}, must be below {} "
                                                 "and {}",
                                                 head.gap_k, head.change_k, kGapBits, bits))
                              .error());
  if (head.changes == 0 || head.changes > elements)
    return tl::unexpected(
        is_corrupt(fmt::format("{} changes in a block of {} elements", head.changes, elements))
            .error());
  return head;
}

/// The elements of a block, as integers of T.
template <class T>
struct Elements {
  static constexpr unsigned kBits = sizeof(T) * 8;
  std::span<std::byte> block;

  std::size_t size() const { return block.size() / sizeof(T); }
  void change(std::size_t at, std::uint64_t by) {
    std::byte* element = block.data() + at * sizeof(T);
    const T value = changed(load<T>(element), by);
    std::memcpy(element, &value, sizeof value);
  }
};

struct Nibbles {
  static constexpr unsigned kBits = 4;
  std::span<std::byte> block;

  std::size_t size() const { return block.size() * 2; }
  void change(std::size_t at, std::uint64_t by) {
    const auto both = std::to_integer<std::uint8_t>(block[at / 2]);
    const unsigned shift = at % 2 * 4;
    const auto value =
        static_cast<unsigned>(changed(static_cast<std::uint8_t>(both >> shift & 15), by)) & 15;
    block[at / 2] = static_cast<std::byte>((both & ~(15U << shift)) | value << shift);
  }
};

template <class Of>
Result<> apply_sparse(std::span<const std::byte> code, Of elements) {
  const auto head = RESHARD_TRY(parse_head(code, Of::kBits, elements.size()));
  BitReader reader(head.bits);
  std::size_t at = 0;
  for (std::size_t i = 0; i < head.changes; ++i) {
    const std::uint64_t gap = reader.take_rice(head.gap_k, kGapBits);
    const std::uint64_t change = reader.take_rice(head.change_k, Of::kBits);
    if (reader.past_end()) return is_corrupt("ends inside a change");
    if (gap >= elements.size() - at) return is_corrupt("a change lies behind the end of its block");
    if (change >= (std::uint64_t{1} << (Of::kBits - 1)) * 2 - 1)
      return is_corrupt("a change does not fit into its element");
    at += static_cast<std::size_t>(gap);
    elements.change(at++, change);
    if (at == elements.size() && i + 1 < head.changes)
      return is_corrupt("a change lies behind the end of its block");
  }
  return reader.ends_well() ? Result<>() : is_corrupt("has bits behind its last change");
}

/// Changes of elements of so many bits, and the parameters of their codes.
template <class Change>
struct Sparse {
  DeltaForm form;
  const std::vector<std::uint32_t>& gaps;
  const std::vector<Change>& changes;
  unsigned bits;
  RiceChoice gap = choose_rice(lengths_of(gaps), kGapBits);
  RiceChoice change = choose_rice(lengths_of(changes), bits);

  /// Estimated: within a factor of two.
  std::uint64_t code_bits() const { return gap.bits + change.bits; }
  /// Writes the code. False if it would be longer than `most` bytes.
  bool write(std::size_t most, std::vector<std::byte>& code) const {
    if (code_bits() / 8 > most * 2) return false;
    constexpr std::size_t kMaxChange = (kMaxUnary + 64 + kMaxUnary + kGapBits + 7) / 8;
    code.resize(kMaxHead + most + kMaxChange + sizeof(std::uint64_t));
    code[0] = static_cast<std::byte>(form);
    code[1] = static_cast<std::byte>(gap.k);
    code[2] = static_cast<std::byte>(change.k);
    BitWriter writer(put_number(code.data() + 3, gaps.size()));
    for (std::size_t i = 0; i < gaps.size(); ++i) {
      writer.put_rice(gaps[i], gap.k, kGapBits);
      writer.put_rice(changes[i], change.k, bits);
      if (writer.end() > code.data() + most) return false;
    }
    code.resize(static_cast<std::size_t>(writer.end() - code.data()));
    return true;
  }
};

}  // namespace

std::span<const std::byte> DeltaEncoder::whole(std::span<const std::byte> next) {
  code_.resize(next.size() + 1);
  code_[0] = static_cast<std::byte>(DeltaForm::whole);
  std::ranges::copy(next, code_.begin() + 1);
  return code_;
}

void DeltaEncoder::find_nibbles(std::span<const std::byte> base, std::span<const std::byte> next) {
  nibble_gaps_.clear();
  nibble_changes_.clear();
  std::size_t at = 0, unchanged_from = 0;
  for (const std::uint32_t gap : gaps_) {
    at += gap;
    const auto before = std::to_integer<unsigned>(base[at]);
    const auto after = std::to_integer<unsigned>(next[at]);
    for (std::size_t half = 0; half < 2; ++half) {
      // In the upper four bits of a byte, the difference is modulo 16.
      const unsigned shift = half == 0 ? 4 : 0;
      const auto a = static_cast<std::uint8_t>(before << shift & 0xf0);
      const auto b = static_cast<std::uint8_t>(after << shift & 0xf0);
      if (a == b) continue;
      const auto difference = static_cast<std::int8_t>(b - a) / 16;
      nibble_gaps_.push_back(static_cast<std::uint32_t>(at * 2 + half - unchanged_from));
      nibble_changes_.push_back(
          static_cast<std::uint8_t>(difference < 0 ? -2 * difference - 2 : 2 * difference - 1));
      unchanged_from = at * 2 + half + 1;
    }
    ++at;
  }
}

std::span<const std::byte> DeltaEncoder::encode(std::span<const std::byte> base,
                                                std::span<const std::byte> next, int width) {
  RESHARD_CHECK(is_width(width) && !next.empty() && next.size() <= kDeltaBlockBytes &&
                next.size() % static_cast<std::size_t>(width) == 0 &&
                (base.empty() || base.size() == next.size()));
  if (base.empty()) return whole(next);
  gaps_.clear();
  changes_.clear();
  switch (width) {
    case 1: find_changes<std::uint8_t>(base, next, gaps_, changes_); break;
    case 2: find_changes<std::uint16_t>(base, next, gaps_, changes_); break;
    case 4: find_changes<std::uint32_t>(base, next, gaps_, changes_); break;
    default: find_changes<std::uint64_t>(base, next, gaps_, changes_); break;
  }
  if (gaps_.empty()) return {};
  const Sparse<std::uint64_t> elements{DeltaForm::sparse, gaps_, changes_,
                                       static_cast<unsigned>(width) * 8};
  if (width == 1 && gaps_.size() <= next.size() / kBytesPerChange) {
    find_nibbles(base, next);
    const Sparse<std::uint8_t> nibbles{DeltaForm::nibbles, nibble_gaps_, nibble_changes_, 4};
    if (nibbles.code_bits() < elements.code_bits())
      return nibbles.write(next.size(), code_) ? std::span<const std::byte>(code_) : whole(next);
  }
  return elements.write(next.size(), code_) ? std::span<const std::byte>(code_) : whole(next);
}

Result<> apply_delta_code(std::span<const std::byte> code, int width, std::span<std::byte> block) {
  RESHARD_CHECK(is_width(width) && block.size() <= kDeltaBlockBytes &&
                block.size() % static_cast<std::size_t>(width) == 0);
  if (code.empty()) return {};
  if (code[0] == static_cast<std::byte>(DeltaForm::whole)) {
    if (code.size() - 1 != block.size())
      return is_corrupt(fmt::format("{} bytes for a block of {}", code.size() - 1, block.size()));
    std::ranges::copy(code.subspan(1), block.begin());
    return {};
  }
  if (code[0] == static_cast<std::byte>(DeltaForm::nibbles) && width == 1)
    return apply_sparse(code, Nibbles{block});
  if (code[0] != static_cast<std::byte>(DeltaForm::sparse))
    return is_corrupt(fmt::format("unknown form {}", std::to_integer<int>(code[0])));
  switch (width) {
    case 1: return apply_sparse(code, Elements<std::uint8_t>{block});
    case 2: return apply_sparse(code, Elements<std::uint16_t>{block});
    case 4: return apply_sparse(code, Elements<std::uint32_t>{block});
    default: return apply_sparse(code, Elements<std::uint64_t>{block});
  }
}

}  // namespace reshard
