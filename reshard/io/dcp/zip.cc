// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/zip.h"

#include <fmt/format.h>

#include <cstdint>

#include "reshard/io/files/json.h"

namespace reshard::dcp {
namespace {

constexpr std::uint64_t kLocal = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50,
                        kEnd64 = 0x06064b50, kLocator = 0x07064b50;
constexpr std::size_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                      kLocatorBytes = 20;
constexpr std::uint64_t kElsewhere = 0xffffffff;  ///< the number is in the 64-bit record.
constexpr std::uint64_t kMaxEntries = 1 << 16;

/// Reads little-endian numbers at places that are checked first.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const { return bytes_.size(); }
  bool has(std::uint64_t at, std::uint64_t bytes) const {
    return at <= size() && bytes <= size() - at;
  }
  /// @pre has(at, bytes)
  std::uint64_t number(std::uint64_t at, int bytes) const {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i)
      value |= std::to_integer<std::uint64_t>(
                   bytes_[static_cast<std::size_t>(at) + static_cast<std::size_t>(i)])
               << (8 * i);
    return value;
  }
  std::span<const std::byte> part(std::uint64_t at, std::uint64_t bytes) const {
    return bytes_.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes));
  }
  std::string_view text(std::uint64_t at, std::uint64_t bytes) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + at, static_cast<std::size_t>(bytes)};
  }

 private:
  std::span<const std::byte> bytes_;
};

struct Directory {
  std::uint64_t offset = 0, entries = 0;
};

Result<Directory> find_directory(const Bytes& b) {
  const std::uint64_t end = b.size() - kEndBytes;
  if (b.size() < kEndBytes || b.number(end, 4) != kEnd)
    return fail(Code::corrupt, "is no archive that torch.save wrote: it does not end as one");
  Directory out{b.number(end + 16, 4), b.number(end + 10, 2)};
  if (end < kLocatorBytes || b.number(end - kLocatorBytes, 4) != kLocator) return out;
  const std::uint64_t at = b.number(end - kLocatorBytes + 8, 8);
  if (!b.has(at, kEnd64Bytes) || b.number(at, 4) != kEnd64)
    return fail(Code::corrupt, "the end of the archive's directory is not where it should be");
  return Directory{b.number(at + 48, 8), b.number(at + 32, 8)};
}

/// One entry of the directory.
struct Entry {
  std::string_view name;
  std::uint64_t stored = 0, plain = 0, offset = 0;
};

/// Takes the numbers that do not fit in 32 bits from the 64-bit record among the extra fields.
Result<> read_wide(const Bytes& b, std::uint64_t at, std::uint64_t end, Entry& entry) {
  while (at + 4 <= end) {
    const std::uint64_t kind = b.number(at, 2), size = b.number(at + 2, 2);
    std::uint64_t next = at + 4;
    if (size > end - next) break;
    for (std::uint64_t* value : {&entry.plain, &entry.stored, &entry.offset}) {
      if (kind != 1 || *value != kElsewhere || next + 8 > at + 4 + size) continue;
      *value = b.number(next, 8);
      next += 8;
    }
    at += 4 + size;
  }
  return {};
}

/// The content of an entry, after its local header.
Result<std::span<const std::byte>> content(const Bytes& b, const Entry& entry) {
  const auto quoted = in_quotes(entry.name);
  if (!b.has(entry.offset, kLocalBytes) || b.number(entry.offset, 4) != kLocal)
    return fail(Code::corrupt, fmt::format("archive entry {} is not where it should be", quoted));
  const std::uint64_t at =
      entry.offset + kLocalBytes + b.number(entry.offset + 26, 2) + b.number(entry.offset + 28, 2);
  if (!b.has(at, entry.plain))
    return fail(Code::corrupt,
                fmt::format("archive entry {} reaches past the end of the archive", quoted));
  return b.part(at, entry.plain);
}

}  // namespace

Result<ZipEntries> zip_entries(std::span<const std::byte> archive) {
  const Bytes b(archive);
  const Directory directory = RESHARD_TRY(find_directory(b));
  if (directory.entries > kMaxEntries)
    return fail(Code::corrupt, fmt::format("an archive of {} entries", directory.entries));
  ZipEntries out;
  std::uint64_t at = directory.offset;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (!b.has(at, kEntryBytes) || b.number(at, 4) != kEntry)
      return fail(Code::corrupt, "the archive's directory is cut off");
    const std::uint64_t name = b.number(at + 28, 2), extra = b.number(at + 30, 2),
                        comment = b.number(at + 32, 2);
    if (!b.has(at + kEntryBytes, name + extra + comment))
      return fail(Code::corrupt, "the archive's directory is cut off");
    Entry entry{b.text(at + kEntryBytes, name), b.number(at + 20, 4), b.number(at + 24, 4),
                b.number(at + 42, 4)};
    RESHARD_TRY(read_wide(b, at + kEntryBytes + name, at + kEntryBytes + name + extra, entry));
    const std::uint64_t method = b.number(at + 10, 2), encrypted = b.number(at + 8, 2) & 1U;
    if (method != 0 || encrypted != 0 || entry.stored != entry.plain)
      return fail(Code::unsupported, fmt::format("archive entry {} is compressed or encrypted",
                                                 in_quotes(entry.name)));
    if (!out.emplace(entry.name, RESHARD_TRY(content(b, entry))).second)
      return fail(Code::corrupt,
                  fmt::format("archive entry {} is there twice", in_quotes(entry.name)));
    at += kEntryBytes + name + extra + comment;
  }
  return out;
}

}  // namespace reshard::dcp
