// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/registry.h"

#include <array>

namespace reshard {
namespace {

constexpr TransportInfo planned(std::string_view name, std::string_view reason,
                                std::string_view purpose) {
  return {name, false, false, "", reason, purpose};
}

// A table and no self-registration: what is not built can be listed too, with its reason.
constexpr std::array kTransports = {
    TransportInfo{"inproc", true, true, "1", "",
                  "ranks as threads of one process: one copy, or none where memory is shared"},
    planned("shm", "not part of this build yet: needs memfd segments that both processes map",
            "ranks as processes of one host"),
    planned("mpi", "not part of this build yet: needs an MPI library (Open MPI or MPICH)",
            "clusters that start their ranks with mpirun or srun"),
    planned("gloo", "not part of this build yet: needs libgloo and a rendezvous store",
            "TCP between hosts without special hardware"),
    planned("ucx", "not part of this build yet: needs libucp",
            "RDMA between hosts, registered once"),
    planned("nccl", "not part of this build yet: needs CUDA and libnccl",
            "GPU memory over NVLink and InfiniBand, in steps on a stream"),
    planned("nvshmem", "not part of this build yet: needs CUDA and a symmetric heap",
            "GPU memory, written by kernels"),
};

}  // namespace

std::span<const TransportInfo> transports() { return kTransports; }

const TransportInfo* find_transport(std::string_view name) {
  for (const TransportInfo& t : kTransports)
    if (t.name == name) return &t;
  return nullptr;
}

}  // namespace reshard
