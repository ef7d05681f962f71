// SPDX-License-Identifier: Apache-2.0
// reshard.Session: a session of the library with the tensors that it refits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/src/sessions/async_refit.h"
#include "python/src/sessions/group.h"
#include "python/src/sessions/published.h"
#include "python/src/tensors/buffers.h"
#include "reshard/refit/session.h"

namespace reshard::python {

/// The arguments of reshard.Session as Python gives them. What is wrong with them is found while
/// the session is prepared, so that all ranks learn of it.
struct SessionArguments {
  nb::object source{}, source_tensors{}, target{}, target_tensors{}, back_tensors{};
  nb::object stream{};
  std::string buffering{}, verify{}, convert{}, path{}, routes{}, host{};
  int threads = 1;
  Index staging_bytes = 0;
  double timeout = 0;
  std::set<std::string> ignore{}, only{};  ///< names or patterns.
  bool replan = false, snapshot = false;
  nb::object trace{};
  nb::object on_phase{}, published{};
};

/// The class reshard.Session. Everything needs the GIL, which waits release.
class TensorSession final : public GroupUser {
 public:
  /// Collective.
  TensorSession(std::shared_ptr<Group> group, const SessionArguments& arguments);
  ~TensorSession() override;
  TensorSession(const TensorSession&) = delete;
  TensorSession& operator=(const TensorSession&) = delete;

  /// `stream` replaces the session's for this call, unless it is None.
  SessionReport refit(std::int64_t version, const nb::object& progress, const nb::object& stream);
  /// refit() in a thread of its own. The group is in use until that ends.
  std::shared_ptr<AsyncRefit> refit_async(std::int64_t version, const nb::object& progress,
                                          const nb::object& stream);
  void verify();
  /// Arguments that are invalid objects (not given) stay as they are.
  void update(const SessionArguments& arguments);

  const PublishedWord& published() const { return *published_; }
  const nb::object& published_object() const { return published_object_; }
  const std::optional<SessionReport>& report();
  const std::shared_ptr<Group>& group() const { return group_; }
  /// Throws if the session is closed, in use by refit_async(), or of another process.
  const Session& session() const;
  bool closed() const { return !session_.has_value(); }
  std::string text() const;

  /// Ends the session on this rank and lets go of the tensors. Throws if a call is in progress.
  void close();
  /// The end of a with block, by an exception of the type or None.
  void leave(const nb::object& type, const nb::object& error);
  void shut() override;

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  /// One side: its layout, and the RankBuffers of this rank, invalid objects if it has none.
  struct Side {
    std::shared_ptr<const Layout> layout;
    nb::object buffers, back;
    std::string trouble;
    bool fresh = false,
         fresh_back = false;  ///< made by this call, which has looked at the tensors.
  };
  class Call;

  struct Sides {
    Side source;
    std::vector<Side> targets;
    bool has_target() const {
      return std::ranges::any_of(targets, [](const Side& s) { return s.buffers.is_valid(); });
    }
  };
  /// All sides as these arguments make them. Throws for arguments that are wrong; nothing is
  /// replaced.
  Sides sides_of(const SessionArguments& arguments) const;
  /// A side with another layout, other tensors, or both; invalid objects: as they are. `name` is
  /// for texts, with a space at its end.
  Side side_with(Side side, const std::string& name, const nb::object& layout,
                 const nb::object& tensors) const;
  void take_back(Side& target, const nb::object& tensors) const;
  /// Takes what is of the session and no side. Throws for arguments that are wrong.
  void take(const SessionArguments& arguments);
  void prepare(SessionOptions options, bool usable);
  SessionOptions options_of(const SessionArguments& arguments);
  SessionSide side_of(const Side& side) const;
  std::vector<SessionSide> targets_of(const Sides& sides) const;
  static std::string name_of_target(const Sides& sides, std::size_t i);
  /// Looks at all tensors of these sides again, for use on a stream, and notes where they are: of
  /// all of them, or of none. Throws why a refit may not use them.
  void look(Sides& sides, const nb::object& stream);
  /// The same for this session's, before a collective call, which tells all ranks if they may not
  /// be used; what was thrown, or null. What ends the process, such as Ctrl-C, ends the group
  /// instead and is thrown.
  std::exception_ptr look_again(const nb::object& stream);
  /// Runs a collective call. An exception of `refused`, or of a callback, is thrown in place of the
  /// library's error.
  void run(Call& call, const std::exception_ptr& refused, const std::function<void()>& work);
  void finish();
  /// Waits for the end of the latest refit_async(), if its result was not taken, and takes it.
  void take_result();
  /// True while a refit_async() lasts.
  bool in_progress() const { return async_ != nullptr && !async_->done(); }
  friend class AsyncRefit;

  std::shared_ptr<Group> group_;
  Sides sides_;
  Sides planned_;  ///< those that the library's plan is of, which update() may have replaced.
  MemoryCheck check_;
  nb::object on_phase_, published_object_, stream_;
  PublishedWord* published_ = nullptr;
  std::optional<Session> session_;
  std::optional<SessionReport> report_;
  Call* call_ = nullptr;  ///< the one in progress.
  /// The latest refit_async(), until its result was taken, and what it needs meanwhile.
  std::shared_ptr<AsyncRefit> async_;
  std::unique_ptr<Call> async_call_;
  std::exception_ptr async_refused_;
  std::unique_ptr<Group::Use> async_use_;
  bool failed_together_ = false;  ///< the last call failed on all ranks.
};

}  // namespace reshard::python
