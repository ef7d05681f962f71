// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/finding.h"
#include "reshard/memory/control_group.h"
#include "reshard/transform/simd.h"
#include "reshard/transport/registry.h"

/// The subjects of `reshard doctor`: for each, the facts, how they are read from this machine, and
/// judge(), which depends on nothing else and so can be tested for machines that are not there.
namespace reshard::cli::doctor {

struct ProcessorFacts {
  int online = 1, usable = 1;        ///< cores of the machine; those that affinity leaves.
  std::optional<double> quota = {};  ///< of the control groups, in cores.
  SimdLevel level = SimdLevel::portable, best = SimdLevel::portable;
};
ProcessorFacts read_processor(const ControlGroupLimits& limits);
Finding judge(const ProcessorFacts& facts);

struct MemoryFacts {
  Index total = 0, available = 0;   ///< bytes; available to this process, whatever limits it.
  std::optional<Index> limit = {};  ///< of the control groups.
  int group_version = 0;
};
MemoryFacts read_memory(const ControlGroupLimits& limits);
Finding judge(const MemoryFacts& facts);

/// A folder for files that others share or that last for one command.
struct FolderFacts {
  enum class Use { shared_memory, temporary };
  Use use = Use::temporary;
  std::string path = {};
  std::string trouble = {};  ///< why no file can be made in it; empty if one can.
  Index bytes = 0, free = 0;
};
FolderFacts read_folder(FolderFacts::Use use);
Finding judge(const FolderFacts& facts);

/// A limit of this process (setrlimit). None: unlimited.
struct LimitFacts {
  std::optional<Index> soft = {}, hard = {};
};

struct OpenFilesFacts {
  LimitFacts limit;
};
OpenFilesFacts read_open_files();
Finding judge(const OpenFilesFacts& facts);

struct LockedMemoryFacts {
  LimitFacts limit;                    ///< bytes.
  std::vector<std::string> rdma = {};  ///< RDMA devices, whose libraries lock memory.
};
LockedMemoryFacts read_locked_memory();
Finding judge(const LockedMemoryFacts& facts);

struct ProcessesFacts {
  std::optional<Index> user = {},
                       group = {};  ///< processes and threads of the user, and of the container.
  int usable_cores = 1;
};
ProcessesFacts read_processes(const ControlGroupLimits& limits);
Finding judge(const ProcessesFacts& facts);

struct AddressSpaceFacts {
  std::optional<Index> limit = {};     ///< bytes.
  std::optional<Index> mappings = {};  ///< vm.max_map_count.
};
AddressSpaceFacts read_address_space();
Finding judge(const AddressSpaceFacts& facts);

struct PeerReadsFacts {
  std::string why_not = {};  ///< process_reads_unavailable().
};
Finding judge(const PeerReadsFacts& facts);

struct HugePagesFacts {
  std::string mode = {}, shared_mode = {};  ///< "madvise"; empty: the kernel has none.
};
HugePagesFacts read_huge_pages();
Finding judge(const HugePagesFacts& facts);

struct NumaFacts {
  int nodes = 1;
};
NumaFacts read_numa();
Finding judge(const NumaFacts& facts);

struct ClockFacts {
  std::string source = {};  ///< "tsc"; empty: not known.
  double nanoseconds = 0;   ///< of one reading.
};
ClockFacts read_clock();
Finding judge(const ClockFacts& facts);

struct NetworkFacts {
  struct Interface {
    std::string name;
    std::vector<std::string> addresses;
    Index megabits = 0;  ///< per second; 0: not known.
  };
  std::vector<Interface> interfaces =
      {};  ///< those that are up and have an address, but no loopback.
  bool loopback = false;
};
NetworkFacts read_network();
Finding judge(const NetworkFacts& facts);

struct ContainerFacts {
  std::string kind = {};  ///< "docker", "podman", "kubernetes", "slurm", ...; empty: none is known.
  int group_version = 0;
};
ContainerFacts read_container(const ControlGroupLimits& limits);
Finding judge(const ContainerFacts& facts);

struct VariablesFacts {
  std::map<std::string, std::string> set =
      {};  ///< those of this environment that begin with RESHARD_.
};
VariablesFacts read_variables();
Finding judge(const VariablesFacts& facts);

struct GpuFacts {
  std::string why_none = {};  ///< empty if there are GPUs.
  struct Gpu {
    std::string name;
    int capability = 0;  ///< times ten.
  };
  std::vector<Gpu> gpus = {};
  int cuda = 0;                 ///< the version that the driver supports, as CUDA writes it: 12040.
  std::string driver = {};      ///< "550.54.15"; empty: not known.
  std::string no_kernels = {};  ///< why this build has no code for GPUs; empty if it has.
};
/// Loads the driver, but makes no context: takes no memory of a GPU.
GpuFacts read_gpus();
Finding judge(const GpuFacts& facts);

Finding judge(const TransportStatus& transport);

/// All of them for this machine, in the order of the report. Takes a second, and never longer than
/// some tens of seconds. @pre this process has one thread
std::vector<Finding> examine();

}  // namespace reshard::cli::doctor
