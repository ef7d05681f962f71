// SPDX-License-Identifier: Apache-2.0
// Runs ranks as processes that are forked from the test program, and collects their failures.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reshard/base/file.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/rendezvous.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

/// A temporary folder for a rendezvous, removed with all its files.
class RendezvousFolder {
 public:
  RendezvousFolder();
  ~RendezvousFolder();
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string url() const { return "file://" + path_; }
  /// Names of the files in it, sorted.
  std::vector<std::string> files() const;

 private:
  std::string path_;
};

/// A counting event shared with processes that are forked after its construction.
class ProcessEvent {
 public:
  ProcessEvent();
  void happen() const;
  /// Waits for `n` more occurrences.
  void wait(int n = 1) const;

 private:
  FileDescriptor reader_, writer_;
};

struct ProcessOptions {
  /// After this time the running processes are killed and their ranks reported as a failure.
  std::chrono::seconds limit{120};
  /// Ranks that must end by SIGKILL, which is a failure for all others.
  std::vector<int> doomed;
};

/// Runs body(rank) in n processes and returns when all have ended. Failed EXPECT and ASSERT,
/// exceptions, signals and processes beyond the limit become failures of this process, prefixed
/// with the rank. @pre the caller has no other thread. A process calls _exit() when its body has
/// returned and it serves no group any more (finish_serving()).
Result<> run_processes(int n, const std::function<void(Rank)>& body,
                       const ProcessOptions& options = {});

/// run_processes() with ranks that have joined a group.
Result<> run_control_processes(int n, const std::function<void(ControlPlane&)>& body,
                               const ProcessOptions& options = {});

/// Makes the data plane of one rank.
using TransportFactory = std::function<Result<std::unique_ptr<Transport>>(ControlPlane&)>;

/// run_control_processes() with a transport, too; for TransportUnderTest::run.
Result<> run_ranks_as_processes(int n, const TransportFactory& factory, const RankBody& body,
                                const ProcessOptions& options = {});

/// The same with threads of this process, which join as processes would.
Result<> run_joined_threads(int n, const TransportFactory& factory, const RankBody& body);

/// A data plane without capabilities, for tests of the control plane.
std::unique_ptr<Transport> no_transport(ControlPlane& control);

}  // namespace reshard
