// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, for tests: forked from the test program, with what they report brought back.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reshard/base/file_descriptor.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/rendezvous.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

/// A folder of its own for a rendezvous, removed with all files in it.
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

/// Something that happens any number of times, in any process that was forked after it was made.
class ProcessEvent {
 public:
  ProcessEvent();
  void happen() const;
  /// Returns once it has happened `n` times more than were waited for before.
  void wait(int n = 1) const;

 private:
  FileDescriptor reader_, writer_;
};

struct ProcessOptions {
  /// Then the processes that still run are killed, and their ranks are told as a failure.
  std::chrono::seconds limit{120};
  /// Ranks that end by SIGKILL, which is a failure of all others.
  std::vector<int> doomed;
};

/// Runs body(rank) in n processes at once and returns when all have ended. What their EXPECT and
/// ASSERT find becomes failures of this process, with the rank in front; so does an exception, a
/// signal, and whatever runs longer than the limit. The caller has no other thread. A process
/// leaves by _exit when its body returns and nothing is left that it serves (finish_serving).
Result<> run_processes(int n, const std::function<void(Rank)>& body,
                       const ProcessOptions& options = {});

/// run_processes() of ranks that have joined.
Result<> run_control_processes(int n, const std::function<void(ControlPlane&)>& body,
                               const ProcessOptions& options = {});

/// Makes the data plane of one rank.
using TransportFactory = std::function<Result<std::unique_ptr<Transport>>(ControlPlane&)>;

/// run_control_processes() with both ends of a rank; for TransportUnderTest::run.
Result<> run_ranks_as_processes(int n, const TransportFactory& factory, const RankBody& body,
                                const ProcessOptions& options = {});

/// The same with ranks as threads of this process, that have joined like processes.
Result<> run_joined_threads(int n, const TransportFactory& factory, const RankBody& body);

/// For tests of the control plane alone: a data plane that can do nothing.
std::unique_ptr<Transport> no_transport(ControlPlane& control);

}  // namespace reshard
