// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/testing/rank_processes_testutil.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/transport/checks.h"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno != EINTR) return;
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::pair<FileDescriptor, FileDescriptor> make_pipe() {
  std::array<int, 2> fds{};
  RESHARD_CHECK(::pipe2(fds.data(), O_CLOEXEC) == 0);
  return {FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

/// Sends the failures of this process to its parent instead of recording them.
class FailureReporter final : public testing::ScopedFakeTestPartResultReporter {
 public:
  explicit FailureReporter(int fd)
      : ScopedFakeTestPartResultReporter(INTERCEPT_ALL_THREADS, nullptr), fd_(fd) {}
  void ReportTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed()) return;
    const char* file = part.file_name() == nullptr ? "?" : part.file_name();
    write_all(fd_, std::string(file) + ":" + std::to_string(part.line_number()) + ": " +
                       part.message() + "\n");
  }

 private:
  const int fd_;
};

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(dir);
  std::ranges::sort(names);
  return names;
}

/// ThreadSanitizer runs a thread of its own.
bool single_threaded() {
#ifdef __SANITIZE_THREAD__
  return true;
#else
  return names_in("/proc/self/task").size() == 1;
#endif
}

[[noreturn]] void be_child(Rank rank, pid_t parent, int report,
                           const std::function<void(Rank)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  const FailureReporter reporter(report);
  try {
    body(rank);
  } catch (const std::exception& e) {
    write_all(report, std::string("exception: ") + e.what() + "\n");
  } catch (...) {
    write_all(report, "exception of an unknown type\n");
  }
  const auto served = finish_serving(Deadline::after(std::chrono::seconds(60)));
  if (!served) write_all(report, served.error().message + "\n");
  std::fflush(nullptr);
  ::_exit(0);
}

struct Child {
  pid_t pid = -1;
  FileDescriptor report;
  std::string text;
  bool running = true;
};

/// Reads the reports of children until all have ended or the time limit is reached.
void read_reports(std::vector<Child>& children, Clock::time_point end) {
  for (;;) {
    std::vector<pollfd> polled;
    for (const Child& c : children) polled.push_back({c.running ? c.report.get() : -1, POLLIN, 0});
    if (std::ranges::none_of(children, &Child::running)) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return;
    if (::poll(polled.data(), polled.size(), static_cast<int>(left)) <= 0) continue;
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (polled[i].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t n = ::read(children[i].report.get(), buffer.data(), buffer.size());
      if (n > 0) children[i].text.append(buffer.data(), static_cast<std::size_t>(n));
      if (n == 0) children[i].running = false;
    }
  }
}

void judge(std::size_t rank, const Child& child, int status, bool hung, bool doomed) {
  if (!child.text.empty()) ADD_FAILURE() << "rank " << rank << ": " << child.text;
  if (hung) return;
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (doomed) {
    EXPECT_TRUE(killed) << "rank " << rank << " was to be killed and ended otherwise";
  } else if (WIFSIGNALED(status)) {
    ADD_FAILURE() << "rank " << rank << " died by signal " << WTERMSIG(status) << " ("
                  << ::strsignal(WTERMSIG(status)) << ")";
  } else if (WEXITSTATUS(status) != 0) {
    ADD_FAILURE() << "rank " << rank << " left with status " << WEXITSTATUS(status);
  }
}

/// The data plane of no_transport().
class NoTransport final : public Transport {
 public:
  NoTransport(Rank rank, int size) : rank_(rank), size_(size) {}
  std::string_view name() const override { return "none"; }
  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  Capabilities capabilities() const override { return {}; }
  Result<std::unique_ptr<Event>> exchange(std::span<const Send>, std::span<const Recv>) override {
    return fail(Code::unsupported, "no data plane");
  }
  Result<RemoteKey> share(std::span<std::byte>) override {
    return fail(Code::unsupported, "no data plane");
  }
  Result<RemoteMemory> open(Rank, const RemoteKey&) override {
    return fail(Code::unsupported, "no data plane");
  }
  Result<> get(std::span<const Get>) override {
    return fail(Code::unsupported, "no data plane");
  }
  void close() override {}

 private:
  const Rank rank_;
  const int size_;
};

void run_joined(const std::string& url, Rank rank, int n,
                const std::function<void(std::unique_ptr<ControlPlane>)>& body) {
  RendezvousOptions place;
  place.url = url;
  place.rank = rank;
  place.size = n;
  auto control = join(place);
  ASSERT_TRUE(control) << control.error().message;
  body(std::move(*control));
}

void run_ends(std::unique_ptr<ControlPlane> control, const TransportFactory& factory,
              const RankBody& body) {
  auto transport = factory(*control);
  ASSERT_TRUE(transport) << transport.error().message;
  RankEnds ends;
  ends.control = std::move(control);
  ends.transport = std::move(*transport);
  body(ends);
}

}  // namespace

RendezvousFolder::RendezvousFolder() {
  const char* root = std::getenv("TMPDIR");
  path_ = std::string(root == nullptr ? "/tmp" : root) + "/reshard-rendezvous-XXXXXX";
  RESHARD_CHECK(::mkdtemp(path_.data()) != nullptr);
}

RendezvousFolder::~RendezvousFolder() {
  for (const std::string& name : files()) ::unlink((path_ + "/" + name).c_str());
  ::rmdir(path_.c_str());
}

std::vector<std::string> RendezvousFolder::files() const { return names_in(path_); }

ProcessEvent::ProcessEvent() { std::tie(reader_, writer_) = make_pipe(); }

void ProcessEvent::happen() const { write_all(writer_.get(), "x"); }

void ProcessEvent::wait(int n) const {
  for (char c; n > 0;) {
    const ssize_t got = ::read(reader_.get(), &c, 1);
    RESHARD_CHECK(got == 1 || (got < 0 && errno == EINTR));
    n -= got == 1;
  }
}

Result<> run_processes(int n, const std::function<void(Rank)>& body,
                       const ProcessOptions& options) {
  RESHARD_TRY(finish_serving(Deadline::after(std::chrono::seconds(10))));
  if (!single_threaded())
    return fail(Code::invalid_argument, "run_processes: this process has other threads");
  std::fflush(nullptr);
  const Clock::time_point end = Clock::now() + options.limit;
  const pid_t parent = ::getpid();
  std::vector<Child> children;
  for (int r = 0; r < n; ++r) {
    auto [reader, writer] = make_pipe();
    const pid_t pid = ::fork();
    if (pid == 0) {
      children.clear();  // the others' ends
      be_child(Rank{r}, parent, writer.get(), body);
    }
    RESHARD_CHECK(pid > 0);
    children.push_back({pid, std::move(reader), "", true});
  }
  read_reports(children, end);
  const auto hangs = [&](std::size_t r) { return children[r].running; };
  if (std::ranges::any_of(children, &Child::running)) {
    ADD_FAILURE() << "after " << options.limit.count() << " s of " << n
                  << " processes have not returned: " << list_ranks(children.size(), hangs);
    for (const Child& c : children)
      if (c.running) ::kill(c.pid, SIGKILL);
  }
  for (std::size_t r = 0; r < children.size(); ++r) {
    int status = 0;
    while (::waitpid(children[r].pid, &status, 0) < 0 && errno == EINTR) {
    }
    judge(r, children[r], status, hangs(r),
          std::ranges::find(options.doomed, static_cast<int>(r)) != options.doomed.end());
  }
  return {};
}

Result<> run_control_processes(int n, const std::function<void(ControlPlane&)>& body,
                               const ProcessOptions& options) {
  const RendezvousFolder folder;
  return run_processes(
      n,
      [&](Rank rank) {
        run_joined(folder.url(), rank, n,
                   [&](std::unique_ptr<ControlPlane> control) { body(*control); });
      },
      options);
}

Result<> run_ranks_as_processes(int n, const TransportFactory& factory, const RankBody& body,
                                const ProcessOptions& options) {
  const RendezvousFolder folder;
  return run_processes(
      n,
      [&](Rank rank) {
        run_joined(folder.url(), rank, n, [&](std::unique_ptr<ControlPlane> control) {
          run_ends(std::move(control), factory, body);
        });
      },
      options);
}

Result<> run_joined_threads(int n, const TransportFactory& factory, const RankBody& body) {
  const RendezvousFolder folder;
  RESHARD_TRY(run_ranks(n, [&](Rank rank) {
    run_joined(folder.url(), rank, n, [&](std::unique_ptr<ControlPlane> control) {
      run_ends(std::move(control), factory, body);
    });
  }));
  return finish_serving(Deadline::after(std::chrono::seconds(60)));
}

std::unique_ptr<Transport> no_transport(ControlPlane& control) {
  return std::make_unique<NoTransport>(control.rank(), control.size());
}

}  // namespace reshard
