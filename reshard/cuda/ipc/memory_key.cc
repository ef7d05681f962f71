// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/ipc/memory_key.h"

#include <cstring>

#include "reshard/base/bytes.h"
#include "reshard/cuda/driver.h"

namespace reshard::ipc {
namespace {

constexpr std::uint64_t kVersion = 1, kAnything = ~std::uint64_t{0}, kMaxInt = 0x7fffffff;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;

}  // namespace

Index MemoryKey::bytes() const {
  Index sum = 0;
  for (const Chunk& chunk : chunks) sum += chunk.bytes;
  return sum;
}

std::vector<std::byte> encode(const MemoryKey& key) {
  ByteWriter out;
  out.number(kVersion);
  out.number(key.process);
  out.number(key.pid_namespace);
  out.number(static_cast<std::uint64_t>(key.pid));
  out.number(static_cast<std::uint64_t>(key.device));
  out.number(key.base);
  out.number(key.id);
  out.number(key.is_mapped ? 1 : 0);
  out.number(key.chunks.size());
  for (const MemoryKey::Chunk& chunk : key.chunks) {
    out.number(static_cast<std::uint64_t>(chunk.bytes));
    out.number(static_cast<std::uint64_t>(chunk.file + 1));
    out.number(chunk.handle ? 1 : 0);
    if (chunk.handle) out.raw({chunk.handle->reserved, sizeof chunk.handle->reserved});
  }
  return std::move(out).finish();
}

Result<MemoryKey> decode_memory_key(std::span<const std::byte> bytes) {
  ByteReader in(bytes, "a key of GPU memory");
  MemoryKey key;
  if (in.number(kAnything, "version") != kVersion) in.fail("another version of reshard");
  key.process = in.number(kAnything, "process");
  key.pid_namespace = in.number(kAnything, "namespace");
  key.pid = static_cast<std::int32_t>(in.number(kMaxInt, "process id"));
  key.device = static_cast<std::int32_t>(in.number(kMaxInt, "GPU"));
  key.base = in.number(kAnything, "address");
  key.id = in.number(kAnything, "memory id");
  key.is_mapped = in.number(1, "kind") == 1;
  const std::size_t count = in.count(3, "allocations");
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    MemoryKey::Chunk chunk;
    const std::uint64_t size = in.number(kMaxBytes, "bytes");
    chunk.bytes = static_cast<Index>(size);
    chunk.file = static_cast<std::int32_t>(in.number(kMaxInt, "file")) - 1;
    if (in.number(1, "handle") == 1) {
      const std::string_view raw = in.raw(sizeof(cuda::IpcHandle), "handle");
      if (in.ok()) std::memcpy(chunk.handle.emplace().reserved, raw.data(), raw.size());
    }
    sum += size;
    if (in.ok() && (size == 0 || sum > kMaxBytes)) in.fail("allocations of no or too many bytes");
    if (in.ok() && !chunk.handle && (chunk.file < 0 || !key.is_mapped))
      in.fail("an allocation without a handle");
    key.chunks.push_back(chunk);
  }
  if (in.ok() && (count == 0 || (count > 1 && !key.is_mapped)))
    in.fail("another number of allocations than its kind has");
  RESHARD_TRY(in.finish());
  return key;
}

}  // namespace reshard::ipc
