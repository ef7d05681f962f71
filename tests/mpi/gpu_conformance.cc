// SPDX-License-Identifier: Apache-2.0
// Protects: over an MPI library that takes GPU memory, messages there keep the guarantees of every
// transport, between processes that mpirun started.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "reshard/gpu_transport/gpu_messages_testutil.h"
#include "reshard/transport/testing/conformance_testutil.h"
#include "tests/mpi/launched_tests.h"

namespace reshard {
namespace {

const bool kModel = load_emulated_driver(EMULATED_GPU);
bool aware = true;

Result<> run_on_gpu(int n, const RankBody& body) {
  TransportOptions options;
  options.gpu = std::atoi(std::getenv("RESHARD_TEST_GPU"));
  return run_launched_with(options, n, body);
}

const TransportUnderTest kGpus{"mpi", run_on_gpu, gpu_memories};
const TransportUnderTest kHostToGpu{"mpi", run_on_gpu, host_to_gpu_memories};
RESHARD_TEST_MESSAGES(MpiGpus, kGpus);
RESHARD_TEST_MESSAGES(MpiHostToGpu, kHostToGpu);

TEST(MpiGpu, memory_on_a_gpu_takes_messages_and_is_not_shared_as_host_memory) {
  const auto body = [](RankEnds& me) {
    EXPECT_TRUE(me.transport->capabilities().gpu_messages);
    const Block memory(me.memory.sends, 64);
    expect_error(me.transport->share(memory.bytes()), Code::unsupported);
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  };
  EXPECT_EQ(outcome(kGpus.run_with_memory(2, body)), "");
}

TEST(MpiGpu, a_library_that_is_not_aware_of_cuda_takes_host_memory_as_without_a_gpu) {
  if (!kModel) GTEST_SKIP() << "the library is what it is";
  aware = false;
  const auto body = [](RankEnds& me) {
    EXPECT_FALSE(me.transport->capabilities().gpu_messages);
    Traffic traffic(me);
    const Rank peer{1 - me.rank().value()};
    traffic.send(peer, MessageId{1}, 100'000);
    traffic.recv(peer, MessageId{1}, 100'000);
    EXPECT_EQ(outcome(step(*me.transport, traffic.sends, traffic.recvs())), "");
    EXPECT_EQ(traffic.wrong(), 0U);
  };
  EXPECT_EQ(outcome(run_on_gpu(2, body)), "");
  aware = true;
}

}  // namespace
}  // namespace reshard

// A model of a library that was built with CUDA, in front of the one that this machine has, which
// takes the emulated GPU's memory for the host memory that it is: this program's functions come
// before the library's. With a real GPU (RESHARD_TEST_GPU) the library answers for itself.
namespace {

bool is_open_mpi() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }

template <class F>
F* real(const char* name) {
  void* const library =
      dlopen(is_open_mpi() ? "libmpi.so.40" : "libmpich.so.12", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<F*>(dlsym(library, name));
}

}  // namespace

extern "C" int MPIX_Query_cuda_support() {
  if (reshard::kModel) return reshard::aware ? 1 : 0;
  return real<int()>(__func__)();
}

/// The only switch for CUDA of some releases.
extern "C" int MPI_Get_library_version(char* text, int* length) {
  if (!reshard::kModel) return real<int(char*, int*)>(__func__)(text, length);
  const std::string_view version =
      is_open_mpi() ? "Open MPI v5.0.0, package: a model" : "MPICH Version:\t4.2.0";
  *std::ranges::copy(version, text).out = '\0';
  *length = static_cast<int>(version.size());
  return 0;
}

int main(int argc, char** argv) { return reshard::run_launched_tests(argc, argv); }
