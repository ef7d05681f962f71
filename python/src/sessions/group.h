// SPDX-License-Identifier: Apache-2.0
// reshard.ProcessGroup: the control plane and the transport of one rank, shared by the sessions on
// them. Thread-safe; needs no GIL unless it says so.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <span>
#include <string>
#include <vector>

#include "python/src/support.h"
#include "reshard/transport/deadline.h"

namespace reshard::python {

/// A control plane for the calls of sessions: after an interrupt it waits for no peer any more.
class InterruptibleControl final : public ControlPlane {
 public:
  explicit InterruptibleControl(ControlPlane& control) : control_(control) {}

  /// Aborts the group, and lets quiesce() give up at once.
  void interrupt(std::string_view reason) {
    interrupted_ = true;
    control_.abort(reason);
  }

  /// True if quiesce() gave up because of an interrupt: threads of other ranks may still use
  /// memory.
  bool unsettled() const { return unsettled_; }

  Rank rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine,
                                                         Deadline deadline) override {
    return control_.all_gather(mine, deadline);
  }
  Result<> all_gather_into(std::span<const std::byte> mine, std::span<std::byte> all,
                           Deadline deadline) override {
    return control_.all_gather_into(mine, all, deadline);
  }
  Result<> barrier(Deadline deadline) override { return control_.barrier(deadline); }
  void abort(std::string_view reason) override { control_.abort(reason); }
  Result<> status() const override { return control_.status(); }
  std::vector<Rank> lost() const override { return control_.lost(); }
  void report(std::int64_t amount) override { control_.report(amount); }
  std::int64_t reported() const override { return control_.reported(); }
  Result<> quiesce(Deadline deadline) override;
  void close() override { control_.close(); }

 private:
  ControlPlane& control_;
  std::atomic<bool> interrupted_ = false, unsettled_ = false;
};

/// An object that uses a group, and must be closed before the group is.
class GroupUser {
 public:
  virtual ~GroupUser() = default;
  /// Ends the use. Called with the GIL.
  virtual void shut() = 0;
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(ProcessGroup parts, std::string transport);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& transport_name() const { return transport_; }
  bool closed() const { return closed_; }
  std::string text() const;

  /// Ends the group for all ranks. Nothing once it is closed.
  void abort(const std::string& reason);
  /// The same because of a signal here: calls in progress end at once.
  void interrupt();
  /// Throws why the group has ended; nothing while it lives.
  void status() const;
  std::vector<Rank> lost() const;

  /// One call at a time uses the group; `what` names it for others. @pre the GIL is held
  class Use {
   public:
    /// Throws if the group is closed, in use, or of the process that forked this one.
    Use(Group& group, const char* what);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ControlPlane& control() const { return *group_.interruptible_; }
    Transport& data() const { return *group_.parts_.transport; }

   private:
    Group& group_;
  };

  /// @pre the GIL is held, as for all below
  void add(GroupUser* user) { users_.push_back(user); }
  void remove(GroupUser* user) { std::erase(users_, user); }
  /// Leaves the group, after its sessions. Idempotent. Throws if a call is in progress.
  void close();
  /// The same at the end of the interpreter: aborts a call in progress, and waits for its end.
  void shut();
  /// After an interrupt: returns once no other thread of this process uses memory of this rank, at
  /// the latest after two seconds.
  void settle();
  /// Throws if the group was made by a parent process that this one was forked from.
  void check_process(const std::string& what) const;

 private:
  bool forked() const;
  void leave();

  ProcessGroup parts_;
  std::unique_ptr<InterruptibleControl> interruptible_;
  const std::string transport_;
  const Rank rank_;
  const int size_;
  const pid_t process_;
  std::atomic<bool> closed_ = false;
  mutable std::mutex mutex_;  ///< guards busy_; held for moments only.
  std::condition_variable idle_;
  const char* busy_ = nullptr;
  std::vector<GroupUser*> users_;  ///< guarded by the GIL.
};

/// The group of these parts, which the end of the interpreter closes. @pre the GIL is held
std::shared_ptr<Group> adopt_group(ProcessGroup parts, const std::string& transport);

}  // namespace reshard::python
