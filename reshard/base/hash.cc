// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/hash.h"

#include <xxhash.h>

#include <bit>
#include <utility>

#include "reshard/base/check.h"

namespace reshard {
namespace {
XXH3_state_t* state(void* p) { return static_cast<XXH3_state_t*>(p); }
}  // namespace

std::uint64_t hash64(std::string_view text, std::uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

Digest::Digest() : state_(XXH3_createState()) {
  RESHARD_CHECK(state_ != nullptr);
  XXH3_64bits_reset(state(state_));
}

Digest::~Digest() { XXH3_freeState(state(state_)); }

Digest::Digest(Digest&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)),
      words_(other.words_),
      num_words_(other.num_words_) {}

Digest& Digest::operator=(Digest&& other) noexcept {
  std::swap(state_, other.state_);
  words_ = other.words_;
  num_words_ = other.num_words_;
  return *this;
}

void Digest::flush() {
  static_assert(std::endian::native == std::endian::little, "digests are of little-endian words");
  XXH3_64bits_update(state(state_), words_.data(), num_words_ * sizeof words_[0]);
  num_words_ = 0;
}

Digest& Digest::add(std::string_view text) {
  add(text.size());
  flush();
  XXH3_64bits_update(state(state_), text.data(), text.size());
  return *this;
}

std::uint64_t Digest::value() {
  flush();
  return XXH3_64bits_digest(state(state_));
}

std::string hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace reshard
