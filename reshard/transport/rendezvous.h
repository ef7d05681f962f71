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

/// What the processes of a job know and nobody else: whoever has it may join. Never printed.
class Secret {
 public:
  Secret() = default;
  /// A new one, from the system's random source.
  static Secret random();
  /// The first line of a file that only its owner may read (as ssh wants its keys). Errors:
  /// missing, readable by others, shorter than 16 characters.
  static Result<Secret> from_file(const std::string& path);
  /// Any text of at least 16 characters. Errors: shorter.
  static Result<Secret> from_text(std::string_view text);

  bool empty() const { return text_.empty(); }
  /// For handing it to a child or a library, never for output.
  std::string_view text() const { return text_; }

 private:
  std::string text_;
};

/// Where and as whom a process joins a group.
struct RendezvousOptions {
  /// "tcp://HOST:PORT": rank 0 listens there, all others connect; needs a secret. Finding the
  /// address of a host's name takes what the system takes, also beyond the deadline.
  /// "file:///FOLDER": a folder that all processes see; rank 0 writes there (readable by its owner
  /// only) where it listens, and a secret when none was given.
  /// "fd://NUMBER": a socket that a common parent left open in this process, and that the caller
  /// keeps: one end of a socketpair() of SOCK_SEQPACKET in rank 0's process, the other end in all
  /// others. Nobody else can come that way, so it needs no secret, and nothing of it has a name.
  std::string url;
  /// Names the group. Groups of other names that meet at the same place do not mix; a new attempt
  /// after a failure takes a new name. Letters, digits, '-', '_', '.', at most 64.
  std::string job = "reshard";
  Rank rank;
  int size = 0;
  Secret secret;
  /// Every rank must bring the same: checked before the group exists. "" is a value too.
  std::string agreement;
  /// A setting that every rank must bring alike, as {"--repeat", "5"}. Who differs is told in
  /// which, with both values: they are no secrets. Compared in this order, before the sizes.
  struct Setting {
    std::string name, value;
  };
  std::vector<Setting> settings;
  Deadline deadline = Deadline::after(std::chrono::seconds(60));
  /// Asked several times a second while the others are waited for, where there is one: a reason
  /// gives up, with `aborted`; "" goes on. Must not use the group.
  std::function<std::string()> gives_up;
};

/// Joins the group and returns its control plane once every rank is there: processes that need no
/// common launcher, that may come in any order and wait for the late ones. Rank 0's process serves
/// the others from a thread of its own; every process has a thread that listens for aborts and
/// deaths, so that status() knows of them within milliseconds.
///
/// All traffic is encrypted and authenticated with the secret: without it nobody joins, reads or
/// aborts. Errors: `invalid_argument` for a bad URL, rank, size or name, a rank that is taken (the
/// second one gets it), or differing settings, sizes or agreements (named); `deadline` names the
/// ranks that did not come; `aborted` when the secrets differ, told to the one who came with the
/// wrong one, and when `gives_up` said so.
///
/// A rank whose process ends without close() has died: its connection ends, and all others learn
/// within milliseconds, status() and all waits, with `aborted` and its number. A host that vanishes
/// without a word is noticed within 25 s. When the process of rank 0 dies, all others know only
/// that.
Result<std::unique_ptr<ControlPlane>> join(const RendezvousOptions& join);

/// Removes what a rank 0 of this host that was killed while it gathered has left in the folder of a
/// file:// rendezvous. Leaves alone what a living process wrote, and every other kind of place.
void remove_dead_rendezvous(const RendezvousOptions& join);

/// The process of rank 0 serves its group until the last rank has left, also after its own close().
/// Returns when no group is left that this process serves: call it before the process of rank 0
/// ends, else the others can abort and quiesce no more from then on. Errors: `deadline`.
Result<> finish_serving(Deadline deadline);

}  // namespace reshard
