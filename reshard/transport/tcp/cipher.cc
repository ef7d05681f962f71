// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/cipher.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

namespace reshard::tcp {
namespace {

static_assert(crypto_scalarmult_BYTES == kKeyBytes && crypto_scalarmult_SCALARBYTES == kKeyBytes);
static_assert(crypto_secretstream_xchacha20poly1305_KEYBYTES == kKeyBytes);

constexpr std::array<unsigned char, 8> kMagic = {'r', 'e', 's', 'h', 'a', 'r', 'd', '1'};
constexpr std::size_t kJobAt = kMagic.size();
constexpr std::size_t kInstanceAt = kJobAt + kKeyBytes;
constexpr std::size_t kPublicAt = kInstanceAt + kInstanceBytes;
constexpr std::size_t kMacAt = kPublicAt + kKeyBytes;
static_assert(kMacAt + kKeyBytes == kHelloBytes);

/// BLAKE2b of a sequence of parts, of which all but the last have a fixed size.
class Hash {
 public:
  explicit Hash(std::string_view context, std::size_t bytes = kKeyBytes) {
    crypto_generichash_init(&state_, nullptr, 0, bytes);
    add(context);
  }
  Hash(std::string_view context, const Key& key, std::size_t bytes = kKeyBytes) {
    crypto_generichash_init(&state_, raw(key.data()), key.size(), bytes);
    add(context);
  }
  Hash& add(std::span<const std::byte> part) {
    crypto_generichash_update(&state_, raw(part.data()), part.size());
    return *this;
  }
  Hash& add(std::string_view part) { return add(std::as_bytes(std::span(part))); }
  template <std::size_t N = kKeyBytes>
  std::array<std::byte, N> value() {
    std::array<std::byte, N> out;
    crypto_generichash_final(&state_, raw(out.data()), out.size());
    return out;
  }

 private:
  crypto_generichash_state state_;
};

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Key hello_mac(const GroupKey& group, std::span<const std::byte, kHelloBytes> hello) {
  return Hash("hello", group.key).add(hello.first<kMacAt>()).value();
}

Key answer_mac(const GroupKey& group, std::span<const std::byte, kHelloBytes> hello,
               std::span<const std::byte> coordinator_public) {
  return Hash("answer", group.key).add(hello).add(coordinator_public).value();
}

/// False if the other public key would make the shared key predictable.
bool session_keys(const GroupKey& group, const Key& own, std::span<const std::byte> other,
                  std::span<const std::byte> rank_public,
                  std::span<const std::byte> coordinator_public, SessionKeys& keys) {
  Key shared;
  if (crypto_scalarmult(raw(shared.data()), raw(own.data()), raw(other.data())) != 0) return false;
  const auto both = Hash("session", group.key, 2 * kKeyBytes)
                        .add(shared)
                        .add(rank_public)
                        .add(coordinator_public)
                        .value<2 * kKeyBytes>();
  std::copy_n(both.begin(), kKeyBytes, keys.from_rank.begin());
  std::copy_n(both.begin() + kKeyBytes, kKeyBytes, keys.from_coordinator.begin());
  sodium_memzero(shared.data(), shared.size());
  return true;
}

Key new_private_key() {
  Key key;
  randombytes_buf(key.data(), key.size());
  return key;
}

}  // namespace

Result<> start_crypto() {
  if (sodium_init() < 0)
    return fail(Code::io, "libsodium cannot start: the system has no source of random bytes");
  return {};
}

Instance random_instance() {
  Instance instance;
  randombytes_buf(instance.data(), instance.size());
  return instance;
}

Key digest_of(std::string_view text) { return Hash("reshard agreement").add(text).value(); }

GroupKey group_key(std::string_view job, const Secret& secret) {
  const Key name = Hash("reshard job").add(job).value();
  return {name, Hash("reshard rendezvous 1").add(name).add(secret.text()).value()};
}

ClientHandshake::ClientHandshake(const GroupKey& group, const Instance& instance)
    : group_(group), private_key_(new_private_key()) {
  std::memcpy(hello_.data(), kMagic.data(), kMagic.size());
  std::ranges::copy(group.job, hello_.begin() + kJobAt);
  std::ranges::copy(instance, hello_.begin() + kInstanceAt);
  crypto_scalarmult_base(raw(hello_.data()) + kPublicAt, raw(private_key_.data()));
  std::ranges::copy(hello_mac(group, hello_), hello_.begin() + kMacAt);
}

Result<SessionKeys> ClientHandshake::finish(std::span<const std::byte, kAnswerBytes> answer) const {
  const auto coordinator_public = answer.first<kKeyBytes>();
  SessionKeys keys;
  if (!equal(answer_mac(group_, hello_, coordinator_public), answer.last<kKeyBytes>()) ||
      !session_keys(group_, private_key_, coordinator_public,
                    std::span(hello_).subspan<kPublicAt, kKeyBytes>(), coordinator_public, keys))
    return fail(Code::aborted, "the sender of the answer does not know the secret");
  return keys;
}

bool looks_like_hello(std::span<const std::byte> beginning) {
  const std::size_t n = std::min(beginning.size(), kMagic.size());
  return std::memcmp(beginning.data(), kMagic.data(), n) == 0;
}

Reply reply_to(std::span<const std::byte, kHelloBytes> hello, const GroupKey& group,
               const Instance& instance) {
  Reply reply;
  const auto named = hello.subspan<kInstanceAt, kInstanceBytes>();
  const bool any = std::ranges::all_of(named, [](std::byte b) { return b == std::byte{0}; });
  if (!equal(hello.subspan<kJobAt, kKeyBytes>(), group.job) || (!any && !equal(named, instance)))
    return reply;
  reply.verdict = Verdict::wrong_secret;
  if (!equal(hello.last<kKeyBytes>(), hello_mac(group, hello))) return reply;
  const Key own = new_private_key();
  Key coordinator_public;
  crypto_scalarmult_base(raw(coordinator_public.data()), raw(own.data()));
  const auto rank_public = hello.subspan<kPublicAt, kKeyBytes>();
  if (!session_keys(group, own, rank_public, rank_public, coordinator_public, reply.keys))
    return reply;
  std::ranges::copy(coordinator_public, reply.answer.begin());
  std::ranges::copy(answer_mac(group, hello, coordinator_public), reply.answer.begin() + kKeyBytes);
  reply.verdict = Verdict::welcome;
  return reply;
}

}  // namespace reshard::tcp
