// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/mpi/runtime.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <list>
#include <mutex>
#include <string_view>

#include "reshard/transport/mpi/channels.h"

namespace reshard::mpi {
namespace {

constexpr std::size_t kMaxBroadcastBytes = 64 * 1024;

struct PendingFrame {
  MPI_Request request;
  std::vector<std::byte> frame;
};

// State that outlives groups. Never destroyed: MPI may use pending frames until the process ends.
struct Runtime {
  std::mutex mutex;
  std::list<PendingFrame> pending;
};
Runtime& runtime() {
  static Runtime* const r = new Runtime;
  return *r;
}

std::atomic<bool> started_here{false}, ended_badly{false};

/// Sends the "finalize" command of PMI 1 to the launcher, on the descriptor that only MPICH uses;
/// false if there is none. MPI_Finalize() of MPICH 4.0 over TCP may hang, even in trivial programs,
/// and its mpirun kills all processes if one exits without this command.
bool finalize_pmi() {
  constexpr std::string_view kWords = "cmd=finalize\n";
  const char* descriptor = std::getenv("PMI_FD");
  if (descriptor == nullptr) return false;
  pollfd answer{std::atoi(descriptor), POLLIN, 0};
  if (write(answer.fd, kWords.data(), kWords.size()) != static_cast<ssize_t>(kWords.size()))
    return false;
  std::array<char, 256> words{};
  if (poll(&answer, 1, 1000) == 1) (void)!read(answer.fd, words.data(), words.size());
  return true;
}

void at_exit() {
  int ended = 0;
  if (!started_here || ended_badly || MPI_Finalized(&ended) != MPI_SUCCESS || ended != 0) return;
  discard_late_frames();
  if (library_version().starts_with("MPICH") && finalize_pmi()) return;
  // With Open MPI this waits for processes that are still working, which is intended.
  MPI_Finalize();
}

Result<> check_thread(int level) {
  int is_main = 0;
  MPI_Is_thread_main(&is_main);
  if (level >= MPI_THREAD_SERIALIZED || (level == MPI_THREAD_FUNNELED && is_main != 0)) return {};
  return fail(Code::unsupported,
              "mpi: the program started MPI for a single thread; start it with "
              "MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
}

/// The name and version in the text of MPI_Get_library_version(), whose format depends on the
/// library: "Open MPI v4.1.4, package: ..." and "MPICH Version:\t4.0.2\n...".
std::string short_version(std::string_view text) {
  const auto after = [&](std::string_view mark) -> std::string_view {
    const std::size_t at = text.find(mark);
    if (at == std::string_view::npos) return {};
    std::string_view rest = text.substr(at + mark.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    return rest.substr(0, rest.find_first_of(", \t\r\n"));
  };
  if (const std::string_view v = after("Open MPI v"); !v.empty())
    return fmt::format("Open MPI {}", v);
  if (const std::string_view v = after("MPICH Version:"); !v.empty())
    return fmt::format("MPICH {}", v);
  return std::string(text.substr(0, text.find_first_of("\r\n")));
}

}  // namespace

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS || length <= 0) return "MPI";
  return short_version({text.data(), static_cast<std::size_t>(length)});
}

std::string host_memory_reason() {
  const std::string library = library_version();
  // An extension, which not every library has.
  const auto query = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support"));
  if (query == nullptr || query() == 0) return library + " reports no support for CUDA";
  if (!library.starts_with("Open MPI ") || library >= "Open MPI 5") return "";
  // Before release 5 the query tells only how the library was built.
  const auto* on = static_cast<const bool*>(dlsym(RTLD_DEFAULT, "opal_cuda_support"));
  if (on == nullptr || *on) return "";
  return library + ": its support for CUDA is off; OMPI_MCA_opal_cuda_support=1 switches it on";
}

Result<> initialize() {
  const std::scoped_lock lock(runtime().mutex);
  int ended = 0, started = 0, level = 0;
  MPI_Finalized(&ended);
  if (ended != 0) return fail(Code::unsupported, "mpi: this process has already finalized MPI");
  MPI_Initialized(&started);
  if (started != 0) {
    MPI_Query_thread(&level);
    return check_thread(level);
  }
  RESHARD_TRY(
      to_result(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread"));
  started_here = true;
  std::atexit(at_exit);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return check_thread(level);
}

void group_ended(bool well, bool whole_world) {
  if (!well) ended_badly = true;
  if (well && whole_world) ended_badly = false;
}

Result<> to_result(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  std::string words(text.data(), static_cast<std::size_t>(length));
  for (char& c : words)
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  return fail(Code::aborted, fmt::format("mpi: {}: {}", what, words));
}

Result<std::vector<std::byte>> broadcast(std::span<const std::byte> mine) {
  RESHARD_TRY(initialize());
  int rank = 0;
  RESHARD_TRY(to_result(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank"));
  std::uint64_t bytes = rank == 0 ? mine.size() : 0;
  RESHARD_TRY(to_result(MPI_Bcast(&bytes, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD), "MPI_Bcast"));
  if (bytes > kMaxBroadcastBytes) {
    return fail(Code::invalid_argument,
                fmt::format("mpi: broadcast of {} bytes: at most {}", bytes, kMaxBroadcastBytes));
  }
  std::vector<std::byte> out(bytes);
  if (rank == 0) std::copy(mine.begin(), mine.end(), out.begin());
  RESHARD_TRY(to_result(MPI_Bcast(out.data(), static_cast<int>(bytes), MPI_BYTE, 0, MPI_COMM_WORLD),
                        "MPI_Bcast"));
  return out;
}

void keep_until_sent(MPI_Request request, std::vector<std::byte> frame) {
  const std::scoped_lock lock(runtime().mutex);
  std::list<PendingFrame>& pending = runtime().pending;
  pending.push_back({request, std::move(frame)});
  std::erase_if(pending, [](PendingFrame& entry) {
    int done = 0;
    return MPI_Test(&entry.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
}

}  // namespace reshard::mpi
