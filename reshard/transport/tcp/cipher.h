// SPDX-License-Identifier: Apache-2.0
// How a rank and the coordinator authenticate each other and derive the keys of their connection.
//
//   K = hash("reshard rendezvous 1", job, secret)           known to both in advance
//   rank -> coordinator   hello: magic, hash(job), instance, P_r, MAC_K(all of it)
//   coordinator -> rank   1 byte verdict; if `welcome` also: P_c, MAC_K(hello, P_c)
//   keys          = hash_K(X25519(own key, other's P), P_r, P_c), one for each direction
//
// P_r and P_c are new for each connection. So a replayed hello gets an answer but no keys, and a
// recorded connection stays unreadable even for someone who learns the secret later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/transport/rendezvous.h"

namespace reshard::tcp {

inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::size_t kInstanceBytes = 16;
inline constexpr std::size_t kHelloBytes = 8 + kKeyBytes + kInstanceBytes + kKeyBytes + kKeyBytes;
inline constexpr std::size_t kAnswerBytes = 2 * kKeyBytes;  ///< after the verdict.

using Key = std::array<std::byte, kKeyBytes>;
/// A random number that identifies a coordinator; all zeros in a hello mean any.
using Instance = std::array<std::byte, kInstanceBytes>;

/// Bytes as libsodium takes them.
inline unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
inline const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

/// The coordinator's answer to a hello, one unencrypted byte.
enum class Verdict : std::uint8_t {
  welcome = 'w',
  other_group = 'o',   ///< another job, or a coordinator that has ended: look again.
  wrong_secret = 's',  ///< the right job, but not its secret.
};

/// The keys of a connection, one for each direction.
struct SessionKeys {
  Key from_rank, from_coordinator;
};

/// Initialises the cryptography library. Must be called before anything else here. Idempotent.
/// Errors: `io`.
Result<> start_crypto();
Instance random_instance();
/// A cryptographic hash of the text.
Key digest_of(std::string_view text);

/// Derived from the name and the secret of a group.
struct GroupKey {
  Key job;  ///< a hash of the name; not secret.
  Key key;
};
GroupKey group_key(std::string_view job, const Secret& secret);

/// The rank's side of the handshake.
class ClientHandshake {
 public:
  ClientHandshake(const GroupKey& group, const Instance& instance);
  std::span<const std::byte, kHelloBytes> hello() const { return hello_; }
  /// The keys from the answer after the verdict. Errors: `aborted` if its sender does not know the
  /// secret.
  Result<SessionKeys> finish(std::span<const std::byte, kAnswerBytes> answer) const;

 private:
  GroupKey group_;
  Key private_key_;
  std::array<std::byte, kHelloBytes> hello_;
};

/// The coordinator's side of the handshake.
struct Reply {
  Verdict verdict = Verdict::other_group;
  std::array<std::byte, kAnswerBytes> answer;  ///< if `welcome`, as are the keys.
  SessionKeys keys;
};
/// False if these cannot be the first bytes of a hello; then do not answer.
bool looks_like_hello(std::span<const std::byte> beginning);
Reply reply_to(std::span<const std::byte, kHelloBytes> hello, const GroupKey& group,
               const Instance& instance);

}  // namespace reshard::tcp
