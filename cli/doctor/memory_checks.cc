// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cli/doctor/checks.h"
#include "reshard/base/file.h"
#include "reshard/base/number_text.h"
#include "reshard/memory/available_memory.h"

namespace reshard::cli::doctor {
namespace {

using State = Finding::State;
using Use = FolderFacts::Use;

/// Why no file can be made there; "" if one can, which is gone at once.
std::string try_file(const std::string& folder) {
  std::string path = folder + "/reshard-doctor-XXXXXX";
  const FileDescriptor file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) return std::strerror(errno);
  ::unlink(path.c_str());
  return "";
}

/// /dev/shm: reshard's own shared memory has no name and does not depend on it.
void judge_shared_memory(const FolderFacts& f, Finding& out) {
  constexpr Index kEnough = Index{1} << 30;
  if (!f.trouble.empty() || f.free < kEnough) {
    out.state = State::note;
    out.effect =
        "NCCL, Open MPI and UCX keep their shared memory there and fail or crash (SIGBUS) "
        "when it is full; shm and gloo do not need it";
    out.remedy = "docker run --shm-size=8g or --ipc=host; Kubernetes: an emptyDir of medium Memory";
  }
}

void judge_temporary(const FolderFacts& f, Finding& out) {
  constexpr Index kEnough = Index{1} << 30;
  if (!f.trouble.empty()) {
    out.state = State::problem;
    out.effect =
        "weights that are computed from a checkpoint, and sessions of MPI and UCX, have no "
        "place for files";
    out.remedy = "name a folder that you may write to in TMPDIR";
  } else if (f.free < kEnough) {
    out.state = State::note;
    out.effect = "weights that are computed from a checkpoint (adapters, codes) may not fit";
    out.remedy = "name a larger folder in TMPDIR";
  }
}

}  // namespace

MemoryFacts read_memory(const ControlGroupLimits& limits) {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return {.total = pages > 0 && page > 0 ? Index{pages} * page : 0,
          .available = available_memory(),
          .limit = limits.memory_bytes,
          .group_version = limits.version};
}

Finding judge(const MemoryFacts& f) {
  constexpr Index kLittle = Index{1} << 30;
  const std::string limit =
      f.limit ? fmt::format("; limit of the control group {}", human_bytes(*f.limit)) : "";
  Finding out{.name = "memory",
              .value = fmt::format("{} available of {}{}", human_bytes(f.available),
                                   human_bytes(f.total), limit),
              .figures = {{"available_bytes", Json(f.available)},
                          {"total_bytes", Json(f.total)},
                          {"limit_bytes", f.limit ? Json(*f.limit) : Json()}}};
  if (f.available > 0 && f.available < kLittle) {
    out.state = State::note;
    out.effect = "a rank needs its weights, and 64 MiB for messages; beyond that it is killed";
    out.remedy = f.limit && *f.limit < f.total ? "raise the container's memory (docker --memory)"
                                               : "free memory, or use more hosts";
  }
  return out;
}

FolderFacts read_folder(Use use) {
  FolderFacts out{.use = use};
  const char* const said = std::getenv("TMPDIR");
  out.path = use == Use::shared_memory          ? "/dev/shm"
             : said != nullptr && *said != '\0' ? said
                                                : "/tmp";
  out.trouble = try_file(out.path);
  struct statvfs s{};
  if (::statvfs(out.path.c_str(), &s) == 0) {
    out.bytes = static_cast<Index>(s.f_blocks) * static_cast<Index>(s.f_frsize);
    out.free = static_cast<Index>(s.f_bavail) * static_cast<Index>(s.f_frsize);
  }
  return out;
}

Finding judge(const FolderFacts& f) {
  const bool shared = f.use == Use::shared_memory;
  Finding out{.name = shared ? "/dev/shm" : "temporary folder",
              .value = fmt::format("{} free of {}", human_bytes(f.free), human_bytes(f.bytes)),
              .figures = {{"path", Json(f.path)},
                          {"writable", Json(f.trouble.empty())},
                          {"free_bytes", Json(f.free)},
                          {"bytes", Json(f.bytes)}}};
  if (!f.trouble.empty()) out.value = "not writable: " + f.trouble;
  if (!shared) out.value = f.path + ", " + out.value;
  shared ? judge_shared_memory(f, out) : judge_temporary(f, out);
  return out;
}

}  // namespace reshard::cli::doctor
