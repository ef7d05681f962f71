// SPDX-License-Identifier: Apache-2.0
// Protects: a process reads what another has in its GPU's memory, of every kind and also after it
// was mapped anew; a key that is wrong, old or hostile is an error, as is every failed call of the
// driver, and all of them give back what they took.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <functional>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/ipc/exported_memory.h"
#include "reshard/cuda/ipc/imported_memory.h"
#include "reshard/cuda/ipc/memory_key.h"
#include "reshard/cuda/ipc/process_files.h"
#include "reshard/cuda/kernel_image.h"
#include "reshard/cuda/mapped_memory_testutil.h"
#include "reshard/cuda/memory.h"
#include "reshard/transport/testing/rank_processes_testutil.h"

namespace reshard {
namespace {

using cuda::Buffer;
using cuda::emulated_gpu;
using cuda::MappedMemory;

constexpr Index kBytes = 5000;

std::vector<GpuRange> ranges_of(const cuda::Device& gpu, std::byte* at, Index bytes) {
  const std::span<std::byte> memory(at, static_cast<std::size_t>(bytes));
  return gpu_ranges(gpu, {&memory, 1}).value();
}

ExportedRange exported(const cuda::Device& gpu, std::byte* at, Index bytes) {
  const auto ranges = ranges_of(gpu, at, bytes);
  EXPECT_EQ(ranges.size(), 1);
  return export_gpu_memory(gpu, ranges[0]).value();
}

std::vector<std::byte> pattern(int seed, std::size_t bytes = kBytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(seed));
  return out;
}

/// Memory of either kind.
struct Owned {
  Owned(const std::shared_ptr<const cuda::Device>& device, int handle_types) : gpu(device) {
    if (handle_types == 0) {
      buffer = Buffer::on_device(gpu, kBytes).value();
    } else {
      mapped = std::make_unique<MappedMemory>(gpu, 3 * MappedMemory::kChunkBytes, handle_types);
    }
  }
  std::byte* data() const { return mapped ? mapped->data() : buffer.data(); }
  Index size() const { return mapped ? mapped->size() : kBytes; }
  /// In all chunks.
  std::byte* middle() const { return data() + (size() - kBytes) / 2; }

  std::shared_ptr<const cuda::Device> gpu;
  Buffer buffer;
  std::unique_ptr<MappedMemory> mapped;
};

constexpr int kAllocated = 0;
/// Real GPUs may have no fabric.
std::vector<int> kinds() {
  if (!cuda::is_emulated()) return {kAllocated, cuda::kFileHandle};
  return {kAllocated, cuda::kFileHandle, cuda::kFabricHandle,
          cuda::kFileHandle | cuda::kFabricHandle};
}

/// Rank 0 owns memory, rank 1 gets its key; both in a process of their own.
void between_processes(int handle_types,
                       const std::function<void(ControlPlane&, const Owned&)>& owner,
                       const std::function<void(ControlPlane&, std::span<const std::byte>)>& peer) {
  const auto ended = run_control_processes(2, [&](ControlPlane& control) {
    const auto gpu = cuda::gpu_under_test();
    const bool owns = control.rank() == Rank(0);
    std::unique_ptr<Owned> memory;
    ExportedRange range;
    if (owns) {
      memory = std::make_unique<Owned>(gpu, handle_types);
      cuda::write_to_gpu(gpu, memory->middle(), pattern(1));
      range = exported(*gpu, memory->data(), memory->size());
    }
    const auto keys = control.all_gather(range.key, patient()).value();
    if (owns) {
      owner(control, *memory);
    } else {
      peer(control, keys[0]);
    }
    EXPECT_TRUE(control.barrier(patient()));
  });
  EXPECT_EQ(outcome(ended), "");
}

void meet(ControlPlane& control) { EXPECT_TRUE(control.barrier(patient())); }

TEST(SharedGpuMemory, is_read_by_another_process) {
  for (const int kind : kinds())
    between_processes(
        kind, [](ControlPlane& control, const Owned&) { meet(control); },
        [&](ControlPlane& control, std::span<const std::byte> key) {
          const auto gpu = cuda::gpu_under_test();
          const int open = emulated_gpu().num_open();
          {
            const auto memory = ImportedMemory::open(gpu, key).value();
            ASSERT_EQ(memory.size(), kind == kAllocated ? kBytes : 3 * MappedMemory::kChunkBytes);
            const std::byte* middle = memory.data() + (memory.size() - kBytes) / 2;
            EXPECT_EQ(cuda::read_from_gpu(gpu, middle, kBytes), pattern(1));
            EXPECT_EQ(cuda::memory_kind(*gpu, middle), (cuda::MemoryKind{true, gpu->ordinal()}));
          }
          meet(control);
          if (cuda::is_emulated()) {  // The context.
            EXPECT_EQ(emulated_gpu().num_open(), open);
          }
        });
}

TEST(SharedGpuMemory, is_opened_once_in_a_process) {
  for (const int kind : {kAllocated, static_cast<int>(cuda::kFileHandle)})
    between_processes(
        kind, [](ControlPlane&, const Owned&) {},
        [](ControlPlane&, std::span<const std::byte> key) {
          const auto gpu = cuda::gpu_under_test();
          auto first = ImportedMemory::open(gpu, key).value();
          emulated_gpu().calls.clear();
          const auto again = ImportedMemory::open(gpu, key).value();
          EXPECT_EQ(again.data(), first.data());
          EXPECT_TRUE(emulated_gpu().calls.empty());
          first = {};
          EXPECT_EQ(cuda::read_from_gpu(gpu, again.data() + (again.size() - kBytes) / 2, kBytes),
                    pattern(1));
        });
}

TEST(SharedGpuMemory, that_is_mapped_anew_takes_its_place_at_the_same_address) {
  const auto renewed = [](ControlPlane& control, const Owned& memory) {
    const auto before = ranges_of(*memory.gpu, memory.data(), memory.size());
    meet(control);
    memory.mapped->replace(1);
    const auto now = ranges_of(*memory.gpu, memory.data(), memory.size());
    EXPECT_NE(now[0].id(), before[0].id());
    EXPECT_EQ(now[0].allocations[0].id, before[0].allocations[0].id);
    cuda::write_to_gpu(memory.gpu, memory.middle(), pattern(2));
    const ExportedRange range = export_gpu_memory(*memory.gpu, now[0]).value();
    EXPECT_TRUE(control.all_gather(range.key, patient()));
    meet(control);
  };
  const auto reads = [](ControlPlane& control, std::span<const std::byte> key) {
    const auto gpu = cuda::gpu_under_test();
    const auto memory = ImportedMemory::open(gpu, key).value();
    const std::byte* middle = memory.data() + (memory.size() - kBytes) / 2;
    meet(control);
    const auto keys = control.all_gather({}, patient()).value();
    EXPECT_EQ(cuda::read_from_gpu(gpu, middle, kBytes), pattern(1));
    const auto again = ImportedMemory::open(gpu, keys[0]).value();
    EXPECT_EQ(again.data(), memory.data());
    EXPECT_EQ(cuda::read_from_gpu(gpu, middle, kBytes), pattern(2));
    meet(control);
  };
  between_processes(cuda::kFileHandle, renewed, reads);
}

TEST(SharedGpuMemory, of_this_process_is_the_memory_itself) {
  const auto gpu = cuda::gpu_under_test();
  for (const int kind : {kAllocated, static_cast<int>(cuda::kFileHandle)}) {
    const Owned memory(gpu, kind);
    const ExportedRange range = exported(*gpu, memory.data(), memory.size());
    const auto opened = ImportedMemory::open(gpu, range.key).value();
    EXPECT_EQ(opened.data(), memory.data());
    EXPECT_EQ(opened.size(), memory.size());
  }
}

TEST(SharedGpuMemory, of_another_gpu_of_this_process_needs_access_between_them) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const auto gpu = cuda::gpu_under_test();
  const std::byte image[] = {std::byte{1}};
  const auto other =
      cuda::Device::open(cuda::emulated_driver(), 1, {.main = image, .portable = {}}).value();
  const Owned memory(other, kAllocated);
  const ExportedRange range = exported(*other, memory.data(), memory.size());
  emulated_gpu().reset();
  emulated_gpu().has_peer_access = false;
  expect_error(ImportedMemory::open(gpu, range.key), Code::unsupported,
               {"GPU 0", "cannot access the memory of GPU 1"});
  emulated_gpu().reset();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(ImportedMemory::open(gpu, range.key).value().data(), memory.data());
  EXPECT_EQ(emulated_gpu().calls["cuCtxEnablePeerAccess"], 2);
  const Owned mapped(other, cuda::kFileHandle);
  const ExportedRange files = exported(*other, mapped.data(), mapped.size());
  const auto opened = ImportedMemory::open(gpu, files.key).value();
  EXPECT_NE(opened.data(), mapped.data());
  EXPECT_EQ(opened.size(), mapped.size());
}

TEST(SharedGpuMemory, ranges_are_allocations_or_what_is_mapped_back_to_back) {
  const auto gpu = cuda::gpu_under_test();
  const Owned allocated(gpu, kAllocated), mapped(gpu, cuda::kFileHandle);
  std::vector<std::span<std::byte>> spans{{allocated.data() + 1, 10},
                                          {allocated.data() + 100, 10},
                                          {mapped.data() + 10, std::size_t{5} << 20}};
  std::ranges::sort(spans, std::less<>(), [](const auto& s) { return s.data(); });
  auto ranges = gpu_ranges(*gpu, spans).value();
  ASSERT_EQ(ranges.size(), 2);
  if (ranges[0].is_mapped) std::swap(ranges[0], ranges[1]);
  EXPECT_EQ(ranges[0].base(), allocated.data());
  EXPECT_EQ(ranges[0].bytes(), allocated.size());
  EXPECT_EQ(ranges[1].base(), mapped.data());
  EXPECT_EQ(ranges[1].allocations.size(), 3);
  EXPECT_EQ(gpu_memory_id(*gpu, mapped.data() + 1).value(), ranges[1].allocations[0].id);
  mapped.mapped->sleep();
  EXPECT_EQ(gpu_memory_id(*gpu, mapped.data()).value(), 0);
  mapped.mapped->wake();
  EXPECT_NE(gpu_memory_id(*gpu, mapped.data()).value(), ranges[1].allocations[0].id);
  int on_stack = 0;
  EXPECT_EQ(gpu_memory_id(*gpu, reinterpret_cast<std::byte*>(&on_stack)).value(), 0);
}

TEST(SharedGpuMemory, ids_need_no_new_driver) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const auto gpu = cuda::gpu_under_test();
  MappedMemory memory(gpu, 1);
  emulated_gpu().has_block_ids = false;
  const auto before = gpu_memory_id(*gpu, memory.data()).value();
  EXPECT_NE(before, 0);
  memory.replace(0);
  EXPECT_NE(gpu_memory_id(*gpu, memory.data()).value(), before);
  emulated_gpu().reset();
}

TEST(SharedGpuMemory, without_a_type_of_handle_is_refused) {
  const auto gpu = cuda::gpu_under_test();
  MappedMemory memory(gpu, 1, cuda::kNoHandle);
  expect_error(export_gpu_memory(*gpu, ranges_of(*gpu, memory.data(), 1)[0]), Code::unsupported,
               {"requestedHandleTypes"});
}

TEST(SharedGpuMemory, that_was_freed_cannot_be_opened) {
  const auto ended = run_control_processes(2, [](ControlPlane& control) {
    const auto gpu = cuda::gpu_under_test();
    ExportedRange range;
    if (control.rank() == Rank(0)) {
      const Owned memory(gpu, kAllocated);
      range = exported(*gpu, memory.data(), memory.size());
    }
    const auto keys = control.all_gather(range.key, patient()).value();
    if (control.rank() == Rank(1))
      expect_error(ImportedMemory::open(gpu, keys[0]), Code::unsupported, {"cuIpcOpenMemHandle"});
    meet(control);
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(SharedGpuMemory, files_that_peers_may_not_take_are_a_reason) {
  const auto gpu = cuda::gpu_under_test();
  ipc::MemoryKey key{.process = 1, .pid_namespace = ipc::pid_namespace(), .pid = 0x7ffffff0};
  key.is_mapped = true;
  key.chunks.push_back({MappedMemory::kChunkBytes, 3});
  expect_error(ImportedMemory::open(gpu, encode(key)), Code::unsupported, {"pidfd_getfd"});
  key.pid_namespace += 1;
  expect_error(ImportedMemory::open(gpu, encode(key)), Code::unsupported,
               {"another process namespace"});
}

TEST(SharedGpuMemory, more_bytes_than_there_are_are_refused) {
  for (const int kind : {kAllocated, static_cast<int>(cuda::kFileHandle)})
    between_processes(
        kind, [](ControlPlane&, const Owned&) {},
        [&](ControlPlane&, std::span<const std::byte> bytes) {
          const auto gpu = cuda::gpu_under_test();
          auto key = ipc::decode_memory_key(bytes).value();
          key.chunks.back().bytes += kind == kAllocated ? 1 : MappedMemory::kChunkBytes;
          EXPECT_FALSE(ImportedMemory::open(gpu, encode(key)));
          EXPECT_TRUE(ImportedMemory::open(gpu, bytes));
        });
}

TEST(SharedGpuMemory, a_key_of_this_process_is_not_believed) {
  const auto gpu = cuda::gpu_under_test();
  const Owned memory(gpu, kAllocated);
  const auto good =
      ipc::decode_memory_key(exported(*gpu, memory.data(), memory.size()).key).value();
  const auto refused = [&](auto&& spoil) {
    ipc::MemoryKey key = good;
    spoil(key);
    expect_error(ImportedMemory::open(gpu, encode(key)), Code::corrupt, {"of this process"});
  };
  refused([](ipc::MemoryKey& key) { key.base += 64; });
  refused([](ipc::MemoryKey& key) { key.base = 4096; });
  refused([](ipc::MemoryKey& key) { key.chunks[0].bytes += 1; });
  refused([](ipc::MemoryKey& key) { key.id += 1; });
}

RC_GTEST_PROP(SharedGpuMemory, bytes_that_are_no_key_are_refused, ()) {
  ipc::MemoryKey key{.process = 3, .pid = 7, .base = 4096, .id = 9, .is_mapped = true};
  const int chunks = *rc::gen::inRange(1, 4);
  for (int i = 0; i < chunks; ++i)
    key.chunks.push_back({*rc::gen::inRange<Index>(1, Index{1} << 40), i, cuda::IpcHandle{}});
  auto bytes = encode(key);
  const auto back = ipc::decode_memory_key(bytes).value();
  RC_ASSERT(encode(back) == bytes);
  RC_ASSERT(back.bytes() == key.bytes());
  auto cut = bytes;
  cut.resize(*rc::gen::inRange<std::size_t>(0, bytes.size()));
  RC_ASSERT(!ipc::decode_memory_key(cut).has_value());
  bytes.push_back(std::byte{0});
  RC_ASSERT(!ipc::decode_memory_key(bytes).has_value());
  key.chunks.back().bytes = 0;
  RC_ASSERT(!ipc::decode_memory_key(encode(key)).has_value());
}

TEST(SharedGpuMemory, every_failed_call_of_an_export_is_an_error_and_leaks_nothing) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const auto gpu = cuda::gpu_under_test();
  for (const int kind : {kAllocated, static_cast<int>(cuda::kFileHandle)}) {
    const Owned memory(gpu, kind);
    const std::span<std::byte> span(memory.data(), static_cast<std::size_t>(memory.size()));
    const auto export_all = [&]() -> Result<ExportedRange> {
      const auto ranges = RESHARD_TRY(gpu_ranges(*gpu, {&span, 1}));
      return export_gpu_memory(*gpu, ranges[0]);
    };
    emulated_gpu().reset();
    ASSERT_TRUE(export_all());
    auto calls = emulated_gpu().calls;
    calls.erase("cuCtxPushCurrent");
    calls.erase("cuCtxPopCurrent");
    EXPECT_GE(calls.size(), 4);
    for (const auto& [name, times] : calls) {
      const int open = emulated_gpu().num_open();
      emulated_gpu().faults[name] = 999;
      EXPECT_EQ(export_all().has_value(), name == "cuMemRelease") << name;
      EXPECT_TRUE(emulated_gpu().faults.empty()) << name;
      EXPECT_LE(emulated_gpu().num_open(), open + (name == "cuMemRelease" ? 1 : 0)) << name;
    }
    emulated_gpu().reset();
  }
}

TEST(SharedGpuMemory, every_failed_call_of_an_import_is_an_error_and_leaks_nothing) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  for (const int kind : {kAllocated, static_cast<int>(cuda::kFileHandle)})
    between_processes(
        kind, [](ControlPlane&, const Owned&) {},
        [](ControlPlane&, std::span<const std::byte> key) {
          const auto gpu = cuda::gpu_under_test();
          emulated_gpu().reset();
          ASSERT_TRUE(ImportedMemory::open(gpu, key));
          const auto calls = emulated_gpu().calls;
          const int open = emulated_gpu().num_open();
          for (const char* name :
               {"cuIpcOpenMemHandle", "cuMemGetAddressRange", "cuMemAddressReserve",
                "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}) {
            if (!calls.contains(name)) continue;
            emulated_gpu().faults[name] = 999;
            EXPECT_FALSE(ImportedMemory::open(gpu, key)) << name;
            EXPECT_EQ(emulated_gpu().num_open(), open) << name;
          }
          EXPECT_TRUE(ImportedMemory::open(gpu, key));
        });
}

TEST(SharedGpuMemoryDeathTest, a_kernel_that_touches_unmapped_memory_is_found) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const auto gpu = cuda::gpu_under_test();
  MappedMemory memory(gpu, 1);
  memory.sleep();
  EXPECT_DEATH(cuda::read_from_gpu(gpu, memory.data(), 64), "");
}

}  // namespace
}  // namespace reshard
