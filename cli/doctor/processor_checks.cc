// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "cli/doctor/checks.h"
#include "reshard/base/number_text.h"
#include "reshard/io/json/plan_json.h"
#include "reshard/memory/worker_pool.h"

namespace reshard::cli::doctor {
namespace {

using State = Finding::State;

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// The word in brackets of "always [madvise] never".
std::string chosen_word(const std::string& line) {
  const auto open = line.find('['), close = line.find(']');
  return open < close && close != line.npos ? line.substr(open + 1, close - open - 1) : "";
}

}  // namespace

ProcessorFacts read_processor(const ControlGroupLimits& limits) {
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  return {.online = online > 0 ? static_cast<int>(online) : 1,
          .usable = usable_cores(),
          .quota = limits.cores,
          .level = simd_level(),
          .best = best_simd_level()};
}

Finding judge(const ProcessorFacts& f) {
  const std::string quota =
      f.quota ? fmt::format(", of which the control group grants {:.1f}", *f.quota) : "";
  Finding out{.name = "processor",
              .value = fmt::format("{} of {} cores{}; {} kernels", f.usable, f.online, quota,
                                   reshard::name(f.level)),
              .figures = {{"cores", Json(Index{f.usable})},
                          {"online_cores", Json(Index{f.online})},
                          {"quota_cores", f.quota ? json_number(*f.quota) : Json()},
                          {"kernels", Json(std::string(reshard::name(f.level)))}}};
  if (f.quota && *f.quota < f.usable) {
    out.state = State::note;
    out.effect = "a thread runs on each core until the quota is used up, then all stand still";
    out.remedy = fmt::format("give --threads {}, or bind the ranks to as many cores",
                             std::max(1, static_cast<int>(std::floor(*f.quota))));
  } else if (f.level < f.best) {
    out.state = State::note;
    out.effect =
        fmt::format("RESHARD_SIMD keeps the faster {} kernels from running", reshard::name(f.best));
    out.remedy = "unset RESHARD_SIMD";
  }
  return out;
}

HugePagesFacts read_huge_pages() {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  return {chosen_word(first_line(folder + "enabled")),
          chosen_word(first_line(folder + "shmem_enabled"))};
}

Finding judge(const HugePagesFacts& f) {
  const auto word = [](const std::string& mode) { return mode.empty() ? "none" : mode; };
  Finding out{.name = "huge pages",
              .value = fmt::format("{} for private memory, {} for shared memory", word(f.mode),
                                   word(f.shared_mode)),
              .figures = {{"private", Json(f.mode)}, {"shared", Json(f.shared_mode)}}};
  if (f.mode == "never") {
    out.state = State::note;
    out.effect = "large tensors take more page faults and misses of the TLB";
    out.remedy = "the host's root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  }
  return out;
}

NumaFacts read_numa() {
  int nodes = 0;
  std::error_code failed;
  for (std::filesystem::directory_iterator entry("/sys/devices/system/node", failed), end;
       !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename();
    if (name.size() > 4 && name.starts_with("node") &&
        name.find_first_not_of("0123456789", 4) == name.npos)
      ++nodes;
  }
  return {std::max(1, nodes)};
}

Finding judge(const NumaFacts& f) {
  Finding out{.name = "NUMA",
              .value = plural(f.nodes, "node"),
              .figures = {{"nodes", Json(Index{f.nodes})}}};
  if (f.nodes > 1) {
    out.state = State::note;
    out.effect = "a rank whose threads and memory are on two nodes copies at half the speed";
    out.remedy =
        "bind each rank to a node: mpirun --bind-to numa, srun --cpu-bind=ldoms or numactl";
  }
  return out;
}

ClockFacts read_clock() {
  ClockFacts out;
  out.source = first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  constexpr int kReadings = 10'000;
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (int i = 1; i < kReadings; ++i) (void)Clock::now();
  out.nanoseconds =
      std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / kReadings;
  return out;
}

Finding judge(const ClockFacts& f) {
  constexpr double kSlow = 500;
  Finding out{.name = "clock",
              .value = fmt::format("{}, {:.0f} ns for a reading",
                                   f.source.empty() ? "unknown source" : f.source, f.nanoseconds),
              .figures = {{"source", Json(f.source)}, {"nanoseconds", json_number(f.nanoseconds)}}};
  if (f.nanoseconds > kSlow) {
    out.state = State::note;
    out.effect = "traces (--trace) slow a refit down";
    out.remedy = "the host should use the clock source tsc";
  }
  return out;
}

}  // namespace reshard::cli::doctor
