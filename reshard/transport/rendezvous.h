// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/control.h"

namespace reshard {

/// A secret that the processes of a job share: whoever has it may join. Never printed.
class Secret {
 public:
  Secret() = default;
  /// A new secret from the system's random source.
  static Secret random();
  /// The first line of a file that only its owner may access (like an ssh key). Errors: missing,
  /// accessible to others, not 16 to 4096 characters.
  static Result<Secret> from_file(const std::string& path);
  /// Any text of 16 to 4096 characters. Errors: another length.
  static Result<Secret> from_text(std::string_view text);

  bool empty() const { return text_.empty(); }
  /// To be passed to a child process or a library, never for output.
  std::string_view text() const { return text_; }

 private:
  std::string text_;
};

/// How a process joins a group.
struct RendezvousOptions {
  /// "tcp://HOST:PORT": rank 0 listens there, all other ranks connect. Needs a secret. Name
  /// resolution may take longer than the deadline.
  /// "file:///FOLDER": a folder that all processes can access. Rank 0 writes a file there, readable
  /// by its owner only, with its addresses, its port and, if none was given, a secret.
  /// "fd://NUMBER": a socket that a common parent left open in this process and that stays the
  /// caller's: one end of a socketpair() of SOCK_SEQPACKET in the process of rank 0, the other end
  /// in all others. No other process can connect, so it needs no secret.
  std::string url;
  /// On rank 0 of a tcp:// URL: a listening socket for the other ranks, in place of one at HOST and
  /// PORT. With it a caller can bind a free port and publish it before joining. Remains owned by
  /// the caller; becomes non-blocking. -1: none.
  int listener = -1;
  /// The name of the group: 1 to 64 letters, digits, '-', '_', '.'. Groups with different names do
  /// not mix even at the same URL. Use a new name for a new attempt after a failure.
  std::string job = "reshard";
  Rank rank;
  int size = 0;
  Secret secret;
  /// Must be equal on all ranks, which is checked before the group exists. May be "".
  std::string agreement;
  /// A setting that must be equal on all ranks, such as {"--repeat", "5"}. If it differs, the error
  /// shows both values, so it must not be secret. Compared in this order, before the sizes.
  struct Setting {
    std::string name, value;
  };
  std::vector<Setting> settings;
  Deadline deadline = Deadline::after(std::chrono::seconds(60));
  /// If set, called several times a second while ranks are missing. Returns "" to go on, or a
  /// reason to give up, which becomes an `aborted` error. Must not use the group.
  std::function<std::string()> gives_up;
};

/// Joins the group and returns its control plane once all ranks have joined. The processes need no
/// common launcher and may start in any order. The process of rank 0 serves the others from a
/// thread of its own; every process has a thread that receives aborts and deaths, so that status()
/// reports them within milliseconds.
///
/// All traffic is encrypted and authenticated with the secret: nobody can join, read or abort
/// without it. Errors: `invalid_argument` for an invalid URL, rank, size or name, for a rank that
/// is taken (only the second process gets it), and for settings, sizes or agreements that differ
/// (named); `deadline` names the ranks that did not join; `aborted` for the wrong secret (only the
/// process that has it gets this error), or if `gives_up` returned a reason.
///
/// A rank has died if its process ends without close(). Within milliseconds status() and all waits
/// of the other ranks fail with `aborted` and the number of the rank. A host that fails or loses
/// its network is noticed within 25 s. After the death of rank 0's process the other ranks only
/// learn of that death.
Result<std::unique_ptr<ControlPlane>> join(const RendezvousOptions& join);

/// Removes the file of a file:// rendezvous if a rank 0 of this host wrote it and was killed before
/// all ranks had joined. Does nothing if that process lives, and for all other URLs.
void remove_dead_rendezvous(const RendezvousOptions& join);

/// Waits until this process serves no group any more: the process of rank 0 serves its group until
/// the last rank has left, even after its own close(). Call this before the process of rank 0 ends;
/// otherwise the other ranks can no longer abort or quiesce. The ranks of a group that was aborted
/// get two seconds from then, since one may never leave. Errors: `deadline`, also for these.
Result<> finish_serving(Deadline deadline);

}  // namespace reshard
