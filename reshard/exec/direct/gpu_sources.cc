// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/gpu_sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "reshard/base/hash.h"
#include "reshard/transport/host_identity.h"

namespace reshard::direct {
namespace {

struct Tensor {
  SlotId slot;
  std::span<std::byte> memory;
};

bool is_before(const std::byte* a, const std::byte* b) { return std::less<>()(a, b); }

/// Puts the tensors into the table, whose spans are the ranges. The first tensor that is in none
/// becomes the table's reason.
void place(std::span<const Tensor> tensors, const std::vector<GpuRange>& ranges,
           const ModelLayout& layout, MemoryTable& table) {
  for (const Tensor& tensor : tensors) {
    const std::byte* const at = tensor.memory.data();
    const auto after = std::ranges::upper_bound(ranges, at, is_before, &GpuRange::base);
    const auto span = static_cast<std::size_t>(after - ranges.begin()) - 1;
    if (after == ranges.begin() || ranges[span].end() < at + tensor.memory.size()) {
      table = MemoryTable{.reason = fmt::format("local tensor '{}' lies in several allocations",
                                                layout.slot(tensor.slot).name)};
      return;
    }
    table.places.push_back({tensor.slot, span, at - ranges[span].base()});
  }
}

}  // namespace

std::uint64_t gpu_host() {
  static const std::uint64_t host = std::max<std::uint64_t>(1, hash64(host_identity()));
  return host;
}

Result<MemoryTable> GpuSources::share(const PrepareArguments& work) {
  std::vector<Tensor> tensors;
  std::vector<std::span<std::byte>> memory;
  const auto slots = RESHARD_TRY(sources_of(work));
  for (const SlotId slot : slots) {
    std::byte* const data = work.source->at(work.me(), slot);
    if (data == nullptr)
      return tl::unexpected(missing_memory("source", work.source_layout(), work.me(), slot));
    const auto bytes = static_cast<std::size_t>(work.source->bytes(work.me(), slot));
    tensors.push_back({slot, {data, bytes}});
    memory.emplace_back(data, bytes);
  }
  std::ranges::sort(memory, is_before, [](const auto& span) { return span.data(); });
  const cuda::Device& device = *work.source->device();
  const auto ranges = gpu_ranges(device, memory);
  MemoryTable table;
  if (ranges) {
    table = RESHARD_TRY(export_ranges(device, *ranges));
    if (table.reason.empty()) place(tensors, *ranges, work.source_layout(), table);
  } else {
    table.reason = ranges.error().message.substr(0, kMaxRefusal);
  }
  if (!table.reason.empty()) known_.clear();
  return table;
}

Result<MemoryTable> GpuSources::export_ranges(const cuda::Device& device,
                                              const std::vector<GpuRange>& ranges) {
  const std::vector<Known> before = std::move(known_);
  known_.clear();
  files_.clear();
  for (const GpuRange& range : ranges) known_.push_back({range.base(), range.bytes(), range.id()});
  const auto has_place = [](const Known& a, const Known& b) {
    return a.base == b.base && a.bytes == b.bytes;
  };
  const bool same_spans = std::ranges::equal(known_, before, has_place);
  MemoryTable table;
  table.gpu_host = gpu_host();
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    MemoryTable::Span& span = table.spans.emplace_back();
    span.bytes = ranges[i].bytes();
    if (same_spans && known_[i] == before[i]) continue;
    auto shared = export_gpu_memory(device, ranges[i]);
    if (!shared) return MemoryTable{.reason = shared.error().message.substr(0, kMaxRefusal)};
    span.key = std::move(shared->key);
    for (FileDescriptor& file : shared->files) files_.push_back(std::move(file));
  }
  return table;
}

Result<std::string> GpuPeer::open(const std::shared_ptr<const cuda::Device>& gpu, Rank owner,
                                  const MemoryTable& table) {
  if (table.gpu_host != gpu_host())
    return fmt::format("the GPU of rank {} is in another host", owner.value());
  std::vector<ImportedMemory> memory;
  for (std::size_t i = 0; i < table.spans.size(); ++i) {
    const MemoryTable::Span& span = table.spans[i];
    if (span.key.empty() && i < memory_.size()) {
      memory.push_back(memory_[i]);
    } else {
      auto opened = ImportedMemory::open(gpu, span.key);
      if (!opened && opened.error().code != Code::corrupt)
        return fmt::format("the GPU memory of rank {}: {}", owner.value(), opened.error().message);
      if (!opened)
        return tl::unexpected(std::move(opened).error().in(fmt::format("rank {}", owner.value())));
      memory.push_back(*std::move(opened));
    }
    if (memory.back().size() != span.bytes)
      return fail(Code::corrupt, fmt::format("rank {} shared {} bytes but announced {}",
                                             owner.value(), memory.back().size(), span.bytes));
  }
  memory_ = std::move(memory);
  return std::string();
}

std::vector<RemoteMemory> GpuPeer::memory(Rank owner) const {
  std::vector<RemoteMemory> out;
  for (const ImportedMemory& memory : memory_)
    out.push_back({owner, static_cast<std::size_t>(memory.size()), memory.data()});
  return out;
}

}  // namespace reshard::direct
