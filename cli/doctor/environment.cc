// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/environment.h"

#include <array>

namespace reshard::cli::doctor {
namespace {

using Of = Variable::Of;

constexpr Variable kVariables[] = {
    {"RESHARD_CACHE", Of::reshard,
     "folder in which Python keeps layouts that were traced; off: none; default: reshard in "
     "$XDG_CACHE_HOME or ~/.cache",
     ""},
    {"RESHARD_CUDA_IMAGE", Of::reshard,
     "file with the code of kernels for GPUs (nvcc -fatbin), instead of that in the build", ""},
    {"RESHARD_EXAMPLES", Of::reshard,
     "folder of the configs that have names; clusters/ and cards/ lie beside it; default: those "
     "that were installed",
     ""},
    {"RESHARD_LOG", Of::reshard,
     "the level up to which events are logged, on standard error; default: warning",
     "error, warning, info, debug"},
    {"RESHARD_MODULES", Of::reshard,
     "folder with the transports' modules, searched before those of the installation", ""},
    {"RESHARD_NCCL_LIBRARY", Of::reshard,
     "file of NCCL, if none is in the process; default: the system's, then that of a wheel", ""},
    {"RESHARD_NVSHMEM_LIBRARY", Of::reshard, "the same for NVSHMEM", ""},
    {"RESHARD_NVSHMEM_STAGING", Of::reshard, "MiB of symmetric memory of each PE; default 256", ""},
    {"RESHARD_PYTHON", Of::reshard,
     "the Python that traces layouts; default: python3, in Python the interpreter itself", ""},
    {"RESHARD_SHM", Of::reshard,
     "the ways in which ranks of a host may reach each other's memory, some of mapped, readv, "
     "ring, passed between commas; default: all",
     ""},
    {"RESHARD_SIMD", Of::reshard,
     "the instruction set of kernels; default: the best that the processor has",
     "portable, avx2, avx512"},
    {"RESHARD_TRACING_SECONDS", Of::reshard,
     "seconds that the tracing of a layout may take; default 1800", ""},
    {"RESHARD_UCX_PUT", Of::reshard,
     "UCX writes into the memory of peers; default: on where there is an RDMA device", "on, off"},

    {"APPTAINER_CONTAINER", Of::system, "set in containers of Apptainer; doctor names it", ""},
    {"CONDA_PREFIX", Of::system, "an environment whose packages may have NCCL and NVSHMEM", ""},
    {"HF_HOME", Of::system, "the folder of Hugging Face; hub in it has the cached models", ""},
    {"HF_HUB_CACHE", Of::system, "the folder of the cached models, before HF_HOME", ""},
    {"HOME", Of::system, "the folder of the user, with .cache", ""},
    {"KUBERNETES_SERVICE_HOST", Of::system, "set in Kubernetes; doctor names it", ""},
    {"NO_COLOR", Of::system, "no colours if it is set and not empty", ""},
    {"TERM", Of::system, "no colours if it is dumb or not set", ""},
    {"TMPDIR", Of::system,
     "folder for temporary files, of weights that are computed from a checkpoint; default /tmp",
     ""},
    {"VIRTUAL_ENV", Of::system, "as CONDA_PREFIX", ""},
    {"XDG_CACHE_HOME", Of::system, "the folder of caches; default ~/.cache", ""},

    {"OMPI_COMM_WORLD_RANK", Of::launcher, "the rank, by mpirun of Open MPI", ""},
    {"OMPI_COMM_WORLD_SIZE", Of::launcher, "the number of ranks, by mpirun of Open MPI", ""},
    {"PMIX_RANK", Of::launcher, "set by launchers of Open MPI: the module of Open MPI is loaded",
     ""},
    {"PMI_FD", Of::launcher, "the connection to mpirun of MPICH, told when a rank ends", ""},
    {"PMI_RANK", Of::launcher, "the rank, by mpirun of MPICH", ""},
    {"PMI_SIZE", Of::launcher, "the number of ranks, by mpirun of MPICH", ""},
    {"RANK", Of::launcher, "the rank, by torchrun", ""},
    {"SLURM_JOB_ID", Of::launcher, "set in jobs of Slurm; doctor names it", ""},
    {"SLURM_PROCID", Of::launcher, "the rank, by srun", ""},
    {"SLURM_STEP_NUM_TASKS", Of::launcher, "the number of ranks, by srun", ""},
    {"WORLD_SIZE", Of::launcher, "the number of ranks, by torchrun", ""},

    {"TQDM_DISABLE", Of::library,
     "if it is not set, python -m reshard.check keeps progress bars of engines silent", ""},
    {"UCX_HANDLE_ERRORS", Of::library, "if it is not set, reshard keeps UCX from catching signals",
     ""},
    {"UCX_LOG_LEVEL", Of::library, "if it is not set, reshard keeps UCX silent", ""},
    {"UCX_NET_DEVICES", Of::library,
     "the network devices of UCX; if it is not set, ranks of one host try lo first", ""},
    {"UCX_TLS", Of::library,
     "the transports of UCX; without one for CUDA, messages of GPUs go through the host", ""},

    {"RESHARD_SPAWNED", Of::internal, "the place of a process that run --spawn started", ""},
    {"RESHARD_TEST_KILL", Of::internal, "makes a rank of run kill itself, for tests", ""},
    {"RESHARD_TEST_STOP", Of::internal, "stops a command at a point, for tests", ""},
};

constexpr std::array kKinds = {"for reshard", "of the system", "of launchers", "of libraries",
                               "internal"};

}  // namespace

std::span<const Variable> environment_variables() { return kVariables; }

std::string_view name(Variable::Of of) { return kKinds.at(static_cast<std::size_t>(of)); }

}  // namespace reshard::cli::doctor
