// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "cli/doctor/checks.h"
#include "reshard/base/number_text.h"
#include "reshard/memory/worker_pool.h"

namespace reshard::cli::doctor {
namespace {

using State = Finding::State;

std::optional<Index> bound(rlim_t value) {
  if (value == RLIM_INFINITY || value > static_cast<rlim_t>(std::numeric_limits<Index>::max()))
    return std::nullopt;
  return static_cast<Index>(value);
}

LimitFacts limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return {};
  return {bound(limit.rlim_cur), bound(limit.rlim_max)};
}

Json number_or_null(const std::optional<Index>& value) { return value ? Json(*value) : Json(); }

std::string count_or_unlimited(const std::optional<Index>& value) {
  return value ? grouped(*value) : "unlimited";
}

std::string bytes_or_unlimited(const std::optional<Index>& value) {
  return value ? human_bytes(*value) : "unlimited";
}

}  // namespace

OpenFilesFacts read_open_files() { return {limit_of(RLIMIT_NOFILE)}; }

Finding judge(const OpenFilesFacts& f) {
  // A rank has two files for each rank of its host, the process of rank 0 a connection to each rank
  // as well; both raise the soft limit themselves. Libraries need some dozens.
  constexpr Index kOthers = 64, kPerRank = 3;
  const std::optional<Index> most = f.limit.hard;
  Finding out{.name = "open files",
              .value = fmt::format("{}, at most {}", count_or_unlimited(f.limit.soft),
                                   count_or_unlimited(most)),
              .figures = {{"soft", number_or_null(f.limit.soft)}, {"hard", number_or_null(most)}}};
  const std::string remedy =
      "ulimit -n 65536; docker run --ulimit nofile=65536; LimitNOFILE= of systemd";
  if (most && *most < 256) {
    out.state = State::problem;
    out.effect = fmt::format(
        "a group of more than {} cannot be formed, and checkpoints of many "
        "files not opened",
        plural(std::max<Index>(1, (*most - kOthers) / kPerRank), "rank"));
    out.remedy = remedy;
  } else if (most && *most < 4096) {
    out.state = State::note;
    out.effect =
        fmt::format("enough for a group of {}", plural((*most - kOthers) / kPerRank, "rank"));
    out.remedy = remedy;
  }
  return out;
}

LockedMemoryFacts read_locked_memory() {
  LockedMemoryFacts out{limit_of(RLIMIT_MEMLOCK)};
  std::error_code failed;
  for (std::filesystem::directory_iterator entry("/sys/class/infiniband", failed), end;
       !failed && entry != end; entry.increment(failed))
    out.rdma.push_back(entry->path().filename());
  std::ranges::sort(out.rdma);
  return out;
}

Finding judge(const LockedMemoryFacts& f) {
  Json::Array devices;
  for (const std::string& device : f.rdma) devices.emplace_back(device);
  Finding out{.name = "locked memory",
              .value = bytes_or_unlimited(f.limit.soft) +
                       (f.rdma.empty() ? "; no RDMA device, which would need more" : ""),
              .figures = {{"soft_bytes", number_or_null(f.limit.soft)},
                          {"hard_bytes", number_or_null(f.limit.hard)},
                          {"rdma_devices", Json(std::move(devices))}}};
  if (!f.limit.soft) out.value = "unlimited";
  if (f.limit.soft && !f.rdma.empty()) {
    out.state = State::problem;
    out.effect = fmt::format("ucx, mpi and nccl cannot register weights with {}", f.rdma.front());
    out.remedy =
        "ulimit -l unlimited; docker run --ulimit memlock=-1; LimitMEMLOCK=infinity of systemd";
  }
  return out;
}

ProcessesFacts read_processes(const ControlGroupLimits& limits) {
  return {limit_of(RLIMIT_NPROC).soft, limits.processes, usable_cores()};
}

Finding judge(const ProcessesFacts& f) {
  std::optional<Index> least = f.user;
  if (f.group && (!least || *f.group < *least)) least = f.group;
  Finding out{.name = "processes",
              .value = fmt::format("{} of the user, {} of the control group, threads included",
                                   count_or_unlimited(f.user), count_or_unlimited(f.group)),
              .figures = {{"user", number_or_null(f.user)}, {"group", number_or_null(f.group)}}};
  // Each rank of a host has a thread for each core, and some of its transport's.
  const Index for_one_rank = Index{f.usable_cores} + 8;
  if (least && *least < for_one_rank) {
    out.state = State::problem;
    out.effect = fmt::format("a rank starts {} threads", for_one_rank);
    out.remedy = "ulimit -u, docker run --pids-limit, or give --threads";
  } else if (least && *least < 8 * for_one_rank) {
    out.state = State::note;
    out.effect = fmt::format("enough for {} on this host with a thread for each core",
                             plural(*least / for_one_rank, "rank"));
    out.remedy = "ulimit -u, docker run --pids-limit, or give --threads";
  }
  return out;
}

AddressSpaceFacts read_address_space() {
  AddressSpaceFacts out{.limit = limit_of(RLIMIT_AS).soft};
  Index mappings = 0;
  if (std::ifstream file("/proc/sys/vm/max_map_count"); file >> mappings) out.mappings = mappings;
  return out;
}

Finding judge(const AddressSpaceFacts& f) {
  constexpr Index kShared = Index{64} << 30, kUsual = 65530;
  Finding out{.name = "address space",
              .value = fmt::format("{}; {} mappings", bytes_or_unlimited(f.limit),
                                   f.mappings ? grouped(*f.mappings) : "unknown"),
              .figures = {{"limit_bytes", number_or_null(f.limit)},
                          {"mappings", number_or_null(f.mappings)}}};
  if (f.limit && *f.limit < kShared) {
    out.state = State::note;
    out.effect = "ranks cannot map the memory of all peers, and a large checkpoint not whole";
    out.remedy = "ulimit -v unlimited";
  } else if (f.mappings && *f.mappings < kUsual) {
    out.state = State::note;
    out.effect = "each mapped file and peer takes mappings";
    out.remedy = fmt::format("the host's root: sysctl vm.max_map_count={}", kUsual);
  }
  return out;
}

Finding judge(const PeerReadsFacts& f) {
  Finding out{.name = "peers' memory",
              .value = f.why_not.empty() ? "processes of this host read each other's" : f.why_not,
              .figures = {{"readable", Json(f.why_not.empty())}}};
  if (!f.why_not.empty()) {
    out.state = State::note;
    out.effect = "tensors that reshard did not allocate travel as messages, with two copies more";
    out.remedy = "docker run --cap-add=SYS_PTRACE, or let reshard allocate the tensors";
  }
  return out;
}

}  // namespace reshard::cli::doctor
