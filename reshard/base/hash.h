// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace reshard {

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words with full
/// avalanche.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// XXH3 of `text`: the same in every process, on every machine, in every release.
std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0);

/// Computes a 64-bit digest (XXH3) of a sequence of values. Equal sequences have equal digests on
/// every machine.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  /// Adds the length and the bytes of the text.
  Digest& add(std::string_view text);
  template <std::integral T>
  Digest& add(T value) {
    if (num_words_ == words_.size()) flush();
    words_[num_words_++] = static_cast<std::uint64_t>(value);
    return *this;
  }
  /// The digest of all values so far. More may be added afterwards.
  std::uint64_t value();

 private:
  void flush();
  void* state_;
  std::array<std::uint64_t, 64> words_;
  std::size_t num_words_ = 0;
};

/// The value as 16 lower-case hexadecimal digits.
std::string hex(std::uint64_t value);

}  // namespace reshard
