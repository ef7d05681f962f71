// SPDX-License-Identifier: Apache-2.0
// How a rank and the hub come to know each other, and the keys of their connection.
//
//   K = hash("reshard rendezvous 1", job, secret)           known to both before
//   rank -> hub   hello: magic, hash(job), instance, P_r, MAC_K(all of it)
//   hub -> rank   1 byte verdict, and when it is `welcome`: P_h, MAC_K(hello, P_h)
//   keys          = hash_K(X25519(own key, other's P), P_r, P_h), one for each direction
//
// P_r and P_h are new for each connection, so a recorded hello gets an answer but no keys, and who
// learns the secret later cannot read what was recorded.
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
inline constexpr std::size_t kAnswerBytes = 2 * kKeyBytes;  ///< behind the verdict.

using Key = std::array<std::byte, kKeyBytes>;
/// Random number of one hub; all zeros in a hello means any.
using Instance = std::array<std::byte, kInstanceBytes>;

/// What the hub answers to a hello, in one clear byte.
enum class Verdict : std::uint8_t {
  welcome = 'w',
  other_group = 'o',   ///< another job's name, or a hub that is gone: look again.
  wrong_secret = 's',  ///< the right group, and not its secret.
};

/// Keys of a connection, for what the rank sends and for what the hub sends.
struct SessionKeys {
  Key from_rank, from_hub;
};

/// Must be called before anything else here; any number of times. Errors: `io`.
Result<> start_crypto();
Instance random_instance();
/// A hash that two texts share only when they are the same.
Key digest_of(std::string_view text);

/// What a group's name and secret are turned into.
struct GroupKey {
  Key job;  ///< a hash of the name, not secret.
  Key key;
};
GroupKey group_key(std::string_view job, const Secret& secret);

/// The rank's side.
class Greeting {
 public:
  Greeting(const GroupKey& group, const Instance& instance);
  std::span<const std::byte, kHelloBytes> hello() const { return hello_; }
  /// Of the answer behind the verdict. Errors: `aborted` when it is not by who knows the secret.
  Result<SessionKeys> finish(std::span<const std::byte, kAnswerBytes> answer) const;

 private:
  GroupKey group_;
  Key private_key_;
  std::array<std::byte, kHelloBytes> hello_;
};

/// The hub's side.
struct Reply {
  Verdict verdict = Verdict::other_group;
  std::array<std::byte, kAnswerBytes> answer;  ///< of `welcome`, as the next.
  SessionKeys keys;
};
/// False when it is no hello at all: say nothing.
bool looks_like_hello(std::span<const std::byte> beginning);
Reply reply_to(std::span<const std::byte, kHelloBytes> hello, const GroupKey& group,
               const Instance& instance);

}  // namespace reshard::tcp
