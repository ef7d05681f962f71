// SPDX-License-Identifier: Apache-2.0
// How fast a converter can write: mapped source to new file, beside the loop that cp falls back to
// and beside a shared mapping of the output. Sizes stay below what a system writes back at once, so
// that the page cache is measured and not the disk; read the best of the repetitions.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/files/disk.h"

namespace reshard {
namespace {

constexpr std::int64_t kBytes = std::int64_t{256} << 20;

/// A folder with a source file of one tensor, in the page cache; removed at the end.
struct Files {
  std::string folder, source, target;
  Files() {
    folder = (std::filesystem::temp_directory_path() / "reshard-bench-XXXXXX").string();
    RESHARD_CHECK(::mkdtemp(folder.data()) != nullptr);
    source = folder + "/source.safetensors";
    target = folder + "/target.safetensors";
    const std::vector<std::byte> data(kBytes, std::byte{0x5a});
    const std::vector<TensorBytes> tensors = {{{"t", DType::u8, {kBytes}}, data}};
    RESHARD_CHECK(write_safetensors(source, tensors).has_value());
  }
  ~Files() { std::filesystem::remove_all(folder); }
};

/// Runs `copy` on a target that is not there, counting only its own time.
template <class Copy>
void measure(benchmark::State& state, Copy&& copy) {
  const Files files;
  for (auto _ : state) {
    copy(files);
    state.PauseTiming();
    ::unlink(files.target.c_str());
    state.ResumeTiming();
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void writer_from_mapping(benchmark::State& state) {
  measure(state, [&](const Files& files) {
    const auto from = *SafetensorsFile::open(files.source);
    const auto data = from.data(from.tensors()[0]);
    auto to = *SafetensorsWriter::create(files.target, {from.tensors()[0]});
    for (std::int64_t at = 0; at < kBytes; at += state.range(0)) {
      const auto piece =
          data.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(state.range(0)));
      RESHARD_CHECK(to.write_at(0, at, piece).has_value());
      from.mapping().drop(at, state.range(0));
    }
    RESHARD_CHECK(to.finish().has_value());
  });
}
BENCHMARK(writer_from_mapping)->Arg(1 << 20)->Arg(4 << 20)->Arg(8 << 20)->UseRealTime();

void writer_in_gathered_pieces(benchmark::State& state) {
  measure(state, [&](const Files& files) {
    const auto from = *SafetensorsFile::open(files.source);
    const auto data = from.data(from.tensors()[0]);
    auto to = *SafetensorsWriter::create(files.target, {from.tensors()[0]});
    constexpr std::int64_t kBatch = 4 << 20;
    std::vector<std::span<const std::byte>> pieces;
    for (std::int64_t at = 0; at < kBytes; at += kBatch) {
      pieces.clear();
      for (std::int64_t k = 0; k < kBatch; k += state.range(0))
        pieces.push_back(data.subspan(static_cast<std::size_t>(at + k),
                                      static_cast<std::size_t>(state.range(0))));
      RESHARD_CHECK(to.write_pieces_at(0, at, pieces).has_value());
      from.mapping().drop(at, kBatch);
    }
    RESHARD_CHECK(to.finish().has_value());
  });
}
BENCHMARK(writer_in_gathered_pieces)->Arg(4 << 10)->Arg(64 << 10)->UseRealTime();

void read_and_write(benchmark::State& state) {
  std::vector<std::byte> buffer(1 << 17);
  measure(state, [&](const Files& files) {
    const FileDescriptor from(::open(files.source.c_str(), O_RDONLY | O_CLOEXEC));
    const auto to = *files::create_file(files.target, 0);
    for (std::int64_t at = 0;;) {
      const auto n = ::read(from.get(), buffer.data(), buffer.size());
      if (n <= 0) break;
      RESHARD_CHECK(files::write_all(to.get(), files.target,
                                     std::span(buffer).first(static_cast<std::size_t>(n)), at)
                        .has_value());
      at += n;
    }
  });
}
BENCHMARK(read_and_write)->UseRealTime();

void copy_in_the_kernel(benchmark::State& state) {
  measure(state, [&](const Files& files) {
    const FileDescriptor from(::open(files.source.c_str(), O_RDONLY | O_CLOEXEC));
    const auto to = *files::create_file(files.target, 0);
    while (::copy_file_range(from.get(), nullptr, to.get(), nullptr, kBytes, 0) > 0) {
    }
  });
}
BENCHMARK(copy_in_the_kernel)->UseRealTime();

void shared_mapping(benchmark::State& state) {
  measure(state, [&](const Files& files) {
    const auto from = *MappedFile::open(files.source);
    const auto to = *files::create_file(files.target, from.size());
    void* data =
        ::mmap(nullptr, from.bytes().size(), PROT_READ | PROT_WRITE, MAP_SHARED, to.get(), 0);
    RESHARD_CHECK(data != MAP_FAILED);
    std::memcpy(data, from.bytes().data(), from.bytes().size());
    ::munmap(data, from.bytes().size());
  });
}
BENCHMARK(shared_mapping)->UseRealTime();

}  // namespace
}  // namespace reshard
