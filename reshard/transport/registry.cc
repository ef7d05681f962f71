// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/registry.h"

#include "reshard/transport/built_modules.h"
#include "reshard/transport/module.h"
#include "reshard/transport/shm/shm.h"

namespace reshard {
namespace {

enum class Origin { builtin, module };

struct Row {
  std::string_view name;
  Origin kind;
  std::string_view text;  ///< builtin: the version.
  std::string_view purpose;
  std::string (*unavailable)() = nullptr;  ///< builtin: why it is unavailable here, or "".
};

// A table rather than self-registration, so that transports that are not built are listed, too.
constexpr Row kRows[] = {
    {"inproc", Origin::builtin, "1",
     "ranks as threads of one process: one copy, or none where memory is shared"},
    {"shm", Origin::builtin, "1", "ranks as processes of one host: one copy, without a server",
     shm::unavailable_reason},
    {"mpi", Origin::module, "", "clusters that start their ranks with mpirun or srun"},
    {"gloo", Origin::module, "", "TCP between hosts without special hardware"},
    {"ucx", Origin::module, "", "RDMA between hosts, registered once"},
    {"nccl", Origin::module, "", "GPU memory over NVLink and InfiniBand, in steps on a stream"},
    {"nvshmem", Origin::module, "", "GPU memory over NVLink and InfiniBand, put with signals"},
};

/// Appends `more` to a one-line list that does not end with it.
void append(std::string& list, std::string_view separator, std::string_view more) {
  if (list.ends_with(more)) return;
  if (!list.empty() && !more.empty()) list += separator;
  list += more;
}

std::string gpu_reason_of(const TransportModule& module) {
  if (module.gpu_reason != nullptr) return module.gpu_reason();
  return module.host_memory ? std::string(kHostMemoryOnly) : std::string();
}

/// Describes a transport of one or more modules. It is available if one of them is; the reasons of
/// the others are dropped then. The same holds for the memory of a GPU.
void describe_modules(TransportStatus& info) {
  std::string reasons, gpu_reasons;
  bool gpu = false;
  for (const BuiltModule& m : built_modules()) {
    if (m.transport != info.name) continue;
    const Result<const TransportModule*> module = load_module(m.name);
    info.built = info.built || m.built || module.has_value();
    if (!module) {
      append(reasons, "; ", module.error().message);
      continue;
    }
    append(info.version, ", ", (*module)->version());
    const std::string reason = (*module)->reason();
    info.available = info.available || reason.empty();
    append(reasons, "; ", reason);
    const std::string gpu_reason = reason.empty() ? gpu_reason_of(**module) : reason;
    gpu = gpu || gpu_reason.empty();
    append(gpu_reasons, "; ", gpu_reason);
  }
  if (!info.available) info.reason = info.gpu_reason = reasons;
  if (info.available && !gpu) info.gpu_reason = gpu_reasons;
}

TransportStatus info_of(const Row& row) {
  TransportStatus info;
  info.name = row.name;
  info.purpose = row.purpose;
  switch (row.kind) {
    case Origin::builtin:
      info.built = true;
      info.version = row.text;
      if (row.unavailable != nullptr) info.reason = row.unavailable();
      info.available = info.reason.empty();
      info.gpu_reason = kHostMemoryOnly;
      break;
    case Origin::module: describe_modules(info); break;
  }
  return info;
}

}  // namespace

std::vector<std::string_view> transport_names() {
  std::vector<std::string_view> out;
  for (const Row& row : kRows) out.push_back(row.name);
  return out;
}

std::vector<TransportStatus> transports() {
  std::vector<TransportStatus> out;
  for (const Row& row : kRows) out.push_back(info_of(row));
  return out;
}

std::optional<TransportStatus> find_transport(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return info_of(row);
  return std::nullopt;
}

}  // namespace reshard
