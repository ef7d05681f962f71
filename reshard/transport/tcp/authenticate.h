// SPDX-License-Identifier: Apache-2.0
// Both ends of the handshake of cipher.h over a socket.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reshard/transport/deadline.h"
#include "reshard/transport/tcp/cipher.h"

namespace reshard::tcp {

/// The outcome of a handshake on the connecting side.
struct Authentication {
  Verdict verdict = Verdict::other_group;
  std::optional<SessionKeys> keys;  ///< if both ends know the secret.
  std::string reason;               ///< why there are no keys.
};

/// Sends a hello and returns the answer; `other_group` also if there is no valid one, or
/// `gives_up`, called several times a second if it is given, returns a reason.
Authentication authenticate(int socket, const GroupKey& key, const Instance& instance,
                            Deadline limit, const std::function<std::string()>& gives_up = nullptr);

/// Receives what a connection sends first, on the accepting side.
class HelloReader {
 public:
  enum class State {
    more,      ///< the hello is not complete.
    answered,  ///< reply() is the answer. Its verdict has been sent, if it is no welcome.
    ended,     ///< the connection is closed, broken, or sends something else.
  };
  /// Reads what has arrived, without waiting.
  State read(int socket, const GroupKey& key, const Instance& instance);
  const Reply& reply() const { return reply_; }
  /// The answer to send before all frames. @pre reply().verdict is `welcome`
  std::vector<std::byte> welcome() const;

 private:
  std::vector<std::byte> hello_;
  Reply reply_{};
};

}  // namespace reshard::tcp
