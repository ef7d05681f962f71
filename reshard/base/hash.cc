// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/hash.h"

#include <xxhash.h>

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

Digest::Digest(Digest&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}

Digest& Digest::operator=(Digest&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Digest& Digest::add(std::string_view text) {
  add_word(text.size());
  XXH3_64bits_update(state(state_), text.data(), text.size());
  return *this;
}

Digest& Digest::add_word(std::uint64_t word) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(word >> (8 * i));
  XXH3_64bits_update(state(state_), bytes, sizeof bytes);
  return *this;
}

std::uint64_t Digest::value() const { return XXH3_64bits_digest(state(state_)); }

std::string hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace reshard
