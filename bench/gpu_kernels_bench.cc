// SPDX-License-Identifier: Apache-2.0
// Kernels on a GPU in turn with the driver's copy that reads and writes as many bytes in total,
// timed by events on a stream. Prints one line.
//
//   gpu_kernels_bench --kind copy --run 192 --pitch 1536
//   gpu_kernels_bench --kind slices --run 1024 --pitch 2048
//   gpu_kernels_bench --kind cast --matrix 4096x14336
//   gpu_kernels_bench --kind transpose --matrix 2880x2880
//   gpu_kernels_bench --kind quantise --format mxfp8 --matrix 4096x14336
//   gpu_kernels_bench --kind fingerprint --matrix 4096x14336
//   gpu_kernels_bench --kind fingerprint_columns --run 192 --pitch 1536
//   gpu_kernels_bench --kind fingerprint_transposed --matrix 2880x2880
//   gpu_kernels_bench --kind beside --run 4096 --pitch 8192
//   ... [--gpu 0] [--mib 2048] [--rounds N]
//
// Each uses as much as fills --mib mebibytes of its source. `slices` copies each run as a tensor of
// its own; `cast` makes BF16 of F32. `beside` runs the copy with an eighth
// of the multiprocessors while another stream has kernels of its own. Fingerprints also run in turn
// with a kernel that only reads. Results are compared with what the host computes: of quantised
// matrices the first and the last one.
#include <algorithm>
#include <cstring>
#include <string>

#include "bench/common/arguments.h"
#include "bench/common/turns.h"
#include "bench/gpu_read.h"
#include "reshard/base/hash.h"
#include "reshard/cuda/driver.h"
#include "reshard/cuda/fingerprints/fingerprint_runner.h"
#include "reshard/cuda/tiles/matrix_runner.h"
#include "reshard/cuda/tiles/tile_runner.h"
#include "reshard/transform/convert.h"

namespace reshard::bench {
namespace {

using cuda::Buffer;
using cuda::Stream;

struct Gpu {
  std::shared_ptr<const cuda::Device> device;
  Stream stream;
  Index rounds = 0;
};

struct Job {
  std::string kind;
  Index mib = 0, run = 0, pitch = 0, rows = 0, cols = 0;
  QuantFormat format;
};

/// Seconds of each contender in each round, which follow each other after a warm-up round.
Result<std::vector<std::vector<double>>> by_events(const Gpu& gpu,
                                                   std::span<const Contender> contenders) {
  const auto begin = RESHARD_TRY(cuda::Event::make(gpu.device, cuda::Event::Timing::on));
  const auto end = RESHARD_TRY(cuda::Event::make(gpu.device, cuda::Event::Timing::on));
  std::vector<std::vector<double>> seconds(contenders.size());
  for (Index round = -1; round < gpu.rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      RESHARD_TRY(begin.record(gpu.stream));
      RESHARD_TRY(contenders[i].run());
      RESHARD_TRY(end.record(gpu.stream));
      RESHARD_TRY(gpu.stream.synchronize());
      if (round >= 0) seconds[i].push_back(RESHARD_TRY(cuda::Event::seconds(begin, end)));
    }
  }
  return seconds;
}

/// Random bits; as BF16, finite numbers of many magnitudes.
HostBuffer random_bits(Index bytes) {
  HostBuffer out = *HostBuffer::allocate(bytes, {.prefault_threads = 2});
  for (Index i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = mix64(static_cast<std::uint64_t>(i)) & 0xbfffbfffbfffbfff;
    std::memcpy(out.data() + i, &word, sizeof word);
  }
  return out;
}

Result<Buffer> on_gpu(const Gpu& gpu, const HostBuffer& host) {
  Buffer out = RESHARD_TRY(Buffer::on_device(gpu.device, host.size()));
  RESHARD_TRY(gpu.stream.copy(out.data(), host.data(), host.size()));
  RESHARD_TRY(gpu.stream.synchronize());
  return out;
}

Result<> expect_same(const Gpu& gpu, const std::byte* at, const std::byte* expected, Index bytes,
                     const std::string& what) {
  const HostBuffer found = RESHARD_TRY(gpu.stream.read(at, bytes));
  if (std::memcmp(found.data(), expected, static_cast<std::size_t>(bytes)) == 0) return {};
  return fail(Code::corrupt, what + " is not what the host computes");
}

/// The driver's copy of so many bytes.
struct PlainCopy {
  Buffer from, to;

  static Result<PlainCopy> of(const Gpu& gpu, Index bytes) {
    PlainCopy out{RESHARD_TRY(Buffer::on_device(gpu.device, bytes)),
                  RESHARD_TRY(Buffer::on_device(gpu.device, bytes))};
    RESHARD_TRY(gpu.stream.fill(out.from.data(), std::byte{1}, bytes));
    return out;
  }
  Contender contender(const Gpu& gpu) const {
    return {"plain", [&] { return gpu.stream.copy(to.data(), from.data(), from.size()); }};
  }
};

/// Half of the bytes that the contenders read and write, which the driver's copy copies.
Result<> measure(const Gpu& gpu, const Job& job, Index plain_bytes,
                 std::vector<Contender> contenders) {
  const PlainCopy plain = RESHARD_TRY(PlainCopy::of(gpu, plain_bytes));
  contenders.insert(contenders.begin(), plain.contender(gpu));
  const auto seconds = RESHARD_TRY(by_events(gpu, contenders));
  JsonLine line;
  line.add("kind", job.kind);
  line.add("gpu", gpu.device->name());
  line.add("plain_bytes", plain_bytes);
  add_seconds(line, contenders, seconds);
  line.print();
  return {};
}

/// Runs of a source that are `pitch` apart, packed in the target.
StridedCopy copy_of(const Job& job) {
  StridedCopy copy{.run_bytes = job.run, .num_loops = 1};
  copy.loops[0] = {(job.mib << 20) / job.pitch, job.pitch, job.run};
  return copy;
}

/// As many matrices of BF16 as fill the source, each transposed.
Result<StridedCopy> transpose_of(const Job& job) {
  const Index count = std::max<Index>(1, (job.mib << 20) / (job.rows * job.cols * 2));
  return make_copy({count, job.rows, job.cols}, {0, Dims{job.rows * job.cols, job.cols, 1}},
                   {0, Dims{job.rows * job.cols, 1, job.rows}}, 16);
}

/// Each run of copy_of() as a copy of its own, as small tensors are.
std::vector<StridedCopy> slices_of(const Job& job) {
  std::vector<StridedCopy> copies(static_cast<std::size_t>((job.mib << 20) / job.pitch));
  Index i = 0;
  for (StridedCopy& copy : copies) {
    copy = {.src_offset = i * job.pitch, .dst_offset = i * job.run, .run_bytes = job.run};
    ++i;
  }
  return copies;
}

struct CopyOnGpu {
  HostBuffer host;
  Buffer source, target;
  cuda::TileRunner runner;
  std::vector<StridedCopy> copies;
  Conversion conversion;

  static Result<CopyOnGpu> make(const Gpu& gpu, std::vector<StridedCopy> copies, Index source_bytes,
                                int most_blocks = 0, const Conversion& conversion = {}) {
    CopyOnGpu out;
    out.host = random_bits(source_bytes);
    out.source = RESHARD_TRY(on_gpu(gpu, out.host));
    Index bytes = 0;
    for (const StridedCopy& copy : copies) bytes += copy.bytes();
    out.target = RESHARD_TRY(Buffer::on_device(gpu.device, bytes));
    out.copies = std::move(copies);
    out.conversion = conversion;
    cuda::TileTable table;
    for (const StridedCopy& copy : out.copies)
      RESHARD_TRY(table.add({copy, out.source.data(), out.target.data(), conversion}));
    table.end_level();
    out.runner = RESHARD_TRY(cuda::TileRunner::make(gpu.device, table, most_blocks));
    return out;
  }
  Result<> check(const Gpu& gpu) const {
    HostBuffer expected = RESHARD_TRY(HostBuffer::allocate(target.size()));
    for (const StridedCopy& copy : copies)
      if (conversion.converts())
        run_conversion(copy, conversion, host.data(), expected.data());
      else
        run_copy(copy, host.data(), expected.data(), CopyHint::streaming);
    copy_fence();
    return expect_same(gpu, target.data(), expected.data(), target.size(), "the copy");
  }
};

Result<> run_copies(const Gpu& gpu, const Job& job) {
  std::vector<StridedCopy> copies;
  if (job.kind == "slices")
    copies = slices_of(job);
  else
    copies.push_back(job.kind == "copy" ? copy_of(job) : RESHARD_TRY(transpose_of(job)));
  const CopyOnGpu work = RESHARD_TRY(
      CopyOnGpu::make(gpu, copies, job.kind == "transpose" ? copies[0].bytes() : job.mib << 20));
  RESHARD_TRY(measure(gpu, job, work.target.size(),
                      {{job.kind, [&] { return work.runner.launch(gpu.stream); }}}));
  return work.check(gpu);
}

/// F32 matrices to BF16.
Result<> run_cast(const Gpu& gpu, const Job& job) {
  const Index elements = (job.mib << 20) / 4 / (job.rows * job.cols) * (job.rows * job.cols);
  if (elements == 0) return fail(Code::invalid_argument, "--mib has no room for the matrix");
  const Conversion conversion{{DType::f32}, {DType::bf16}};
  const CopyOnGpu work = RESHARD_TRY(
      CopyOnGpu::make(gpu, {make_widening_copy({elements}, {0, Dims{1}}, {0, Dims{1}}, 4, 2)},
                      elements * 4, 0, conversion));
  RESHARD_TRY(measure(gpu, job, elements * 3,
                      {{job.kind, [&] { return work.runner.launch(gpu.stream); }}}));
  return work.check(gpu);
}

/// A load of kernels, a refit's copy, and both at a time on two streams.
Result<> run_beside(const Gpu& gpu, const Job& job) {
  constexpr int kLaunches = 8;
  const int share = std::max(1, gpu.device->multiprocessors() / 8);
  const CopyOnGpu load = RESHARD_TRY(CopyOnGpu::make(gpu, {copy_of(job)}, job.mib << 20));
  const CopyOnGpu work = RESHARD_TRY(CopyOnGpu::make(gpu, {copy_of(job)}, job.mib << 20,
                                                     share * static_cast<int>(cuda::kTileBlocks)));
  const Stream other = RESHARD_TRY(Stream::make(gpu.device));
  const auto fork = RESHARD_TRY(cuda::Event::make(gpu.device)),
             join = RESHARD_TRY(cuda::Event::make(gpu.device));
  const auto run_load = [&](const Stream& stream) -> Result<> {
    for (int i = 0; i < kLaunches; ++i) RESHARD_TRY(load.runner.launch(stream));
    return {};
  };
  const auto run_both = [&]() -> Result<> {
    RESHARD_TRY(fork.record(gpu.stream));
    RESHARD_TRY(fork.hold(other));
    RESHARD_TRY(run_load(other));
    RESHARD_TRY(join.record(other));
    RESHARD_TRY(work.runner.launch(gpu.stream));
    return join.hold(gpu.stream);
  };
  RESHARD_TRY(measure(gpu, job, work.target.size(),
                      {{"load", [&] { return run_load(gpu.stream); }},
                       {"refit", [&] { return work.runner.launch(gpu.stream); }},
                       {"both", run_both}}));
  RESHARD_TRY(load.check(gpu));
  return work.check(gpu);
}

/// Matrices on the GPU, and one of the host to compare with.
struct Quantised {
  QuantFormat format;
  Index rows = 0, cols = 0, count = 0;
  HostBuffer host;
  Buffer numbers, data, scales, factors, amaxes, back;

  Index number_bytes() const { return rows * cols * 2; }
  Index data_bytes() const { return rows * cols * bits(format.data) / 8; }
  Index one_scale_bytes() const { return scale_bytes(format, rows, cols); }
  Index bytes() const { return count * (number_bytes() + data_bytes() + one_scale_bytes()); }

  QuantMatrix stored(std::byte* of_data, std::byte* of_scales, std::byte* factor) const {
    return {format,
            of_data,
            rows,
            cols,
            cols * bits(format.data) / 8,
            of_scales,
            scale_cols(format, cols) * bits(format.scale) / 8,
            factor};
  }
  FloatMatrix plain(std::byte* at) const { return {at, DType::bf16, rows, cols, cols * 2}; }
  cuda::MatrixSlice slice(Index i, const Buffer& values) const {
    return {plain(values.data() + i * number_bytes()),
            stored(data.data() + i * data_bytes(), scales.data() + i * one_scale_bytes(),
                   factors.data() + 4 * i),
            rows, 0, reinterpret_cast<float*>(amaxes.data()) + i};
  }

  static Result<Quantised> make(const Gpu& gpu, const Job& job) {
    RESHARD_TRY(check_quant_format(job.format, job.rows, job.cols));
    Quantised out;
    out.format = job.format;
    out.rows = job.rows;
    out.cols = job.cols;
    out.count = std::max<Index>(1, (job.mib << 20) / out.number_bytes());
    out.host = random_bits(out.count * out.number_bytes());
    out.numbers = RESHARD_TRY(on_gpu(gpu, out.host));
    for (const auto& [buffer, bytes] : {std::pair(&out.data, out.data_bytes()),
                                        {&out.scales, out.one_scale_bytes()},
                                        {&out.factors, Index{4}},
                                        {&out.amaxes, Index{4}},
                                        {&out.back, out.number_bytes()}})
      *buffer = RESHARD_TRY(Buffer::on_device(gpu.device, out.count * bytes));
    return out;
  }
  Result<cuda::MatrixRunner> runner(const Gpu& gpu, cuda::MatrixWork work) const {
    cuda::MatrixTable table(work);
    for (Index i = 0; i < count; ++i)
      RESHARD_TRY(table.add(slice(i, work == cuda::MatrixWork::dequantise ? back : numbers)));
    table.end_level();
    return cuda::MatrixRunner::make(gpu.device, table);
  }
  /// Errors: bytes that differ from those of the host.
  Result<> check(const Gpu& gpu, Index i) const {
    HostBuffer of_data = RESHARD_TRY(HostBuffer::allocate(data_bytes())),
               of_scales = RESHARD_TRY(HostBuffer::allocate(one_scale_bytes())),
               of_back = RESHARD_TRY(HostBuffer::allocate(number_bytes()));
    float factor = 0;
    const QuantMatrix mine =
        stored(of_data.data(), of_scales.data(), reinterpret_cast<std::byte*>(&factor));
    quantise(plain(const_cast<std::byte*>(host.data()) + i * number_bytes()), mine);
    dequantise_rows(mine, plain(of_back.data()), 0, rows);
    const std::string name = "matrix " + std::to_string(i);
    const cuda::MatrixSlice theirs = slice(i, back);
    RESHARD_TRY(expect_same(gpu, theirs.stored.data, mine.data, data_bytes(), name + ", data"));
    RESHARD_TRY(
        expect_same(gpu, theirs.stored.scales, mine.scales, one_scale_bytes(), name + ", scales"));
    return expect_same(gpu, theirs.values.data, of_back.data(), number_bytes(),
                       name + ", dequantised");
  }
};

Result<> run_quantised(const Gpu& gpu, const Job& job) {
  using cuda::MatrixWork;
  const Quantised work = RESHARD_TRY(Quantised::make(gpu, job));
  const auto amax = RESHARD_TRY(work.runner(gpu, MatrixWork::amax)),
             quantise = RESHARD_TRY(work.runner(gpu, MatrixWork::quantise)),
             dequantise = RESHARD_TRY(work.runner(gpu, MatrixWork::dequantise));
  const bool two_passes = needs_amax(job.format);
  const auto run_quantise = [&]() -> Result<> {
    if (two_passes) RESHARD_TRY(amax.launch(gpu.stream, 0));
    return quantise.launch(gpu.stream, 0);
  };
  RESHARD_TRY(measure(gpu, job, work.bytes() / 2,
                      {{"quantise", run_quantise},
                       {"dequantise", [&] { return dequantise.launch(gpu.stream, 0); }}}));
  RESHARD_TRY(work.check(gpu, 0));
  return work.check(gpu, work.count - 1);
}

/// Tensors of BF16 that fill the source, each with a sum of its own.
struct Fingerprinted {
  FingerprintKey key;
  Box box;
  Strided where;
  Index count = 0, tensor_bytes = 0;
  HostBuffer host;
  Buffer memory;
  cuda::FingerprintRunner runner;

  Index bytes() const { return count * box.volume() * 2; }

  static Result<Fingerprinted> make(const Gpu& gpu, const Job& job) {
    Fingerprinted out;
    const bool columns = job.kind == "fingerprint_columns";
    constexpr Index kRows = 4096;
    const Dims shape = columns ? Dims{kRows, job.pitch / 2} : Dims{job.rows, job.cols};
    out.key = RESHARD_TRY(FingerprintKey::make("t", shape, DType::bf16));
    out.box = Box::whole(shape);
    if (columns) out.box = out.box.with(1, {0, std::max<Index>(1, job.run / 2)});
    out.where = {0, row_major(shape)};
    if (job.kind == "fingerprint_transposed") out.where.strides = Dims{1, shape[0]};
    out.tensor_bytes = volume(shape) * 2;
    out.count = std::max<Index>(1, (job.mib << 20) / out.tensor_bytes);
    out.host = random_bits(out.count * out.tensor_bytes);
    out.memory = RESHARD_TRY(on_gpu(gpu, out.host));
    cuda::FingerprintTable table;
    for (Index i = 0; i < out.count; ++i)
      RESHARD_TRY(
          table.add({&out.key, out.box, out.where, out.memory.data() + i * out.tensor_bytes}, i));
    table.end();
    out.runner = RESHARD_TRY(cuda::FingerprintRunner::make(gpu.device, table));
    return out;
  }
  Result<> check() const {
    for (Index i = 0; i < count; ++i)
      if (!(RESHARD_TRY(fingerprint(key, box, where, host.data() + i * tensor_bytes)) ==
            runner.sums()[static_cast<std::size_t>(i)]))
        return fail(Code::corrupt, "fingerprint " + std::to_string(i) + " is not the host's");
    return {};
  }
};

/// As many bytes are read by the kernel that only reads, and half as many are copied by the driver.
Result<> run_fingerprints(const Gpu& gpu, const Job& job) {
  const Fingerprinted work = RESHARD_TRY(Fingerprinted::make(gpu, job));
  const Index read_bytes = work.bytes() / 16 * 16;
  const auto read = PlainRead::make(gpu.device->driver(), gpu.device->ordinal());
  std::vector<Contender> contenders;
  if (read)
    contenders.push_back(
        {"read", [&] { return read->launch(gpu.stream, work.memory.data(), read_bytes); }});
  contenders.push_back({"fingerprint", [&] { return work.runner.launch(gpu.stream); }});
  RESHARD_TRY(measure(gpu, job, work.bytes() / 2, std::move(contenders)));
  if (read) RESHARD_TRY(read->check(gpu.stream, work.host.data(), read_bytes));
  return work.check();
}

Result<Job> job_of(Arguments& arguments) {
  Job job;
  job.kind = arguments.text("kind");
  job.mib = RESHARD_TRY(arguments.integer("mib", 2048));
  job.run = RESHARD_TRY(arguments.integer("run", 4096));
  job.pitch = RESHARD_TRY(arguments.integer("pitch", 2 * job.run));
  const auto sizes = RESHARD_TRY(arguments.integers("matrix", "4096x14336", 'x'));
  const auto format = quant_format_from_name(arguments.text("format", "mxfp8"));
  constexpr Index kMax = Index{1} << 20;
  if (sizes.size() != 2 || std::ranges::any_of(sizes, [](Index n) { return n < 1 || n > kMax; }) ||
      job.mib < 1 || job.mib > kMax || job.run < 1 || job.pitch < job.run || job.pitch > kMax)
    return fail(Code::invalid_argument,
                "give --matrix ROWSxCOLUMNS, --mib, --run and --pitch, all from 1 to 2^20");
  if (!format)
    return fail(Code::invalid_argument, "--format takes one of " + known_quant_formats());
  job.rows = sizes[0];
  job.cols = sizes[1];
  job.format = *format;
  return job;
}

Result<> run(Arguments& arguments) {
  const Job job = RESHARD_TRY(job_of(arguments));
  const Index number = RESHARD_TRY(arguments.integer("gpu", 0));
  const Index rounds = RESHARD_TRY(arguments.integer("rounds", 9));
  RESHARD_TRY(arguments.unused());
  if (number > 1023) return fail(Code::invalid_argument, "--gpu takes at most 1023");
  const cuda::Driver* driver = RESHARD_TRY(cuda::load_driver());
  auto device = RESHARD_TRY(cuda::Device::open(*driver, static_cast<int>(number)));
  auto stream = RESHARD_TRY(Stream::make(device));
  const Gpu gpu{std::move(device), std::move(stream), rounds};
  if (job.kind == "copy" || job.kind == "slices" || job.kind == "transpose")
    return run_copies(gpu, job);
  if (job.kind == "cast") return run_cast(gpu, job);
  if (job.kind == "quantise") return run_quantised(gpu, job);
  if (job.kind.starts_with("fingerprint")) return run_fingerprints(gpu, job);
  if (job.kind == "beside") return run_beside(gpu, job);
  return fail(
      Code::invalid_argument,
      "--kind takes copy, slices, cast, transpose, quantise, fingerprint, fingerprint_columns, "
      "fingerprint_transposed or beside");
}

}  // namespace
}  // namespace reshard::bench

int main(int argc, char** argv) {
  return reshard::bench::run_program(argc, argv, reshard::bench::run);
}
