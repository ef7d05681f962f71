// SPDX-License-Identifier: Apache-2.0
// A refit between processes whose memory is on GPUs of this host, and which read each other's (CUDA
// IPC), in turn with the driver's copy of as many bytes from the same peers. Checks every
// destination element afterwards. Runs one process per rank, started with RANK and WORLD_SIZE set;
// rank 0 prints one line.
//
//   gpu_peers_bench <a job, see rank_job.h> [--gpus N] [--rounds N]
//
// Rank r uses GPU r modulo N.
#include "bench/common/arguments.h"
#include "bench/common/values.h"
#include "bench/rank_job.h"
#include "reshard/cuda/driver.h"
#include "reshard/cuda/ipc/exported_memory.h"
#include "reshard/cuda/ipc/imported_memory.h"
#include "reshard/cuda/memory.h"
#include "reshard/exec/device/device_tensors.h"
#include "reshard/exec/rank_refit.h"

namespace reshard::bench {
namespace {

using cuda::Buffer;
using cuda::Stream;

Result<std::shared_ptr<const cuda::Device>> device_of(Rank rank, Index gpus) {
  const cuda::Driver* driver = RESHARD_TRY(cuda::load_driver());
  return cuda::Device::open(*driver, static_cast<int>(rank.value() % gpus));
}

/// A side of this rank on the GPU; nothing if it holds none of it.
Result<std::unique_ptr<DeviceTensors>> on_gpu(const RankBuffers* host, const Stream& stream) {
  if (host == nullptr) return std::unique_ptr<DeviceTensors>();
  auto out = std::make_unique<DeviceTensors>(RESHARD_TRY(
      DeviceTensors::allocate(host->shared_layout(), host->ranks(), stream.shared_device())));
  RESHARD_TRY(out->copy_from(*host, stream));
  RESHARD_TRY(stream.synchronize());
  return out;
}

const RankBuffers* buffers_of(const std::unique_ptr<DeviceTensors>& side) {
  return side ? &side->buffers() : nullptr;
}

/// Each rank copies as many bytes as are delivered to it from the memory of the next rank.
struct PlainCopies {
  Buffer mine, into;
  ExportedRange shared;
  ImportedMemory next;
  Index bytes = 0;

  static Result<PlainCopies> make(const RankJob& job,
                                  const std::shared_ptr<const cuda::Device>& gpu) {
    PlainCopies out;
    out.bytes = RESHARD_TRY(job.bytes_delivered());
    const Index most = RESHARD_TRY(job.max(out.bytes));
    out.mine = RESHARD_TRY(Buffer::on_device(gpu, most));
    out.into = RESHARD_TRY(Buffer::on_device(gpu, out.bytes));
    const std::span<std::byte> memory(out.mine.data(), static_cast<std::size_t>(most));
    const auto ranges = RESHARD_TRY(gpu_ranges(*gpu, {&memory, 1}));
    out.shared = RESHARD_TRY(export_gpu_memory(*gpu, ranges.at(0)));
    const auto keys = RESHARD_TRY(job.group.control->all_gather(out.shared.key, patient()));
    out.next = RESHARD_TRY(ImportedMemory::open(gpu, keys[(job.rank().index() + 1) % keys.size()]));
    return out;
  }
  Result<> run(const Stream& stream) const {
    if (bytes > 0) RESHARD_TRY(stream.copy(into.data(), next.data(), bytes));
    return stream.synchronize();
  }
};

Result<> print(const RankJob& job, const cuda::Device& gpu, const RankRefit& refit, Index checked,
               std::span<const Contender> contenders,
               const std::vector<std::vector<double>>& seconds) {
  JsonLine line;
  line.add("gpu", gpu.name());
  line.add("transport", job.transport);
  line.add("path", refit.path());
  line.add("ranks", Index{job.size()});
  const Index delivered = RESHARD_TRY(job.bytes_delivered());
  line.add("bytes", RESHARD_TRY(job.sum(delivered)));
  line.add("most_delivered", RESHARD_TRY(job.max(delivered)));
  line.add("checked_bytes", RESHARD_TRY(job.sum(checked)));
  add_seconds(line, contenders, seconds);
  if (job.rank() == Rank{0}) line.print();
  return {};
}

Result<> run(Arguments& arguments) {
  const Index rounds = RESHARD_TRY(arguments.integer("rounds", 7));
  const Index gpus = RESHARD_TRY(arguments.integer("gpus", 1));
  const RankJob job = RESHARD_TRY(join_job(arguments));
  RESHARD_TRY(arguments.unused());
  if (gpus < 1) return fail(Code::invalid_argument, "--gpus: expected 1 or more");
  const auto gpu = RESHARD_TRY(device_of(job.rank(), gpus));
  const Stream stream = RESHARD_TRY(Stream::make(gpu));
  if (job.target) spoil_values(*job.target);
  const auto source = RESHARD_TRY(on_gpu(job.source.get(), stream));
  const auto target = RESHARD_TRY(on_gpu(job.target.get(), stream));
  RankRefitOptions options;
  options.seconds = 300;
  options.path = RefitPath::direct;
  auto refit = RESHARD_TRY(RankRefit::prepare(*job.planner, buffers_of(source), buffers_of(target),
                                              *job.group.transport, *job.group.control, options));
  const PlainCopies plain = RESHARD_TRY(PlainCopies::make(job, gpu));
  const Contender contenders[] = {together(job, "plain", [&] { return plain.run(stream); }),
                                  together(job, "refit", [&]() -> Result<> {
                                    RESHARD_TRY(refit.run());
                                    return {};
                                  })};
  const auto seconds = RESHARD_TRY(by_turns(contenders, Rounds(rounds)));
  Index checked = 0;
  if (target) {
    RESHARD_TRY(target->copy_to(*job.target, stream));
    RESHARD_TRY(stream.synchronize());
    checked = RESHARD_TRY(check_values(*job.target));
  }
  RESHARD_TRY(print(job, *gpu, refit, checked, contenders, seconds));
  return job.group.control->quiesce(patient());
}

}  // namespace
}  // namespace reshard::bench

int main(int argc, char** argv) {
  return reshard::bench::run_program(argc, argv, reshard::bench::run);
}
