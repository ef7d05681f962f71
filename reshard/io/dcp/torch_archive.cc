// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/torch_archive.h"

#include <array>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/io/dcp/crc32.h"
#include "reshard/io/dcp/known_classes.h"
#include "reshard/io/pickle/writer.h"

namespace reshard::dcp {
namespace {

constexpr std::size_t kAlignArchive = 64;
constexpr std::int64_t kNarrow = std::numeric_limits<std::uint32_t>::max();

/// Appends a number in so many bytes, the lowest first. Bytes beyond the eighth are zero.
void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i, value >>= 8) out += static_cast<char>(value & 0xffU);
}

/// A file of the archive; the tensor is the last.
struct ArchiveFile {
  std::string_view name;
  std::int64_t bytes = 0;
  std::uint32_t crc = 0;
  std::int64_t offset = 0;  ///< of its local header.
};

/// The pickle that torch.save writes for a tensor without gradient.
std::string tensor_pickle(DType dtype, const Dims& shape, std::int64_t bytes) {
  Dims strides = shape;
  Index step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<Index>(shape[i], 1);
  }
  const auto tuple = [](pickle::Writer& w, const Dims& dims) {
    w.begin_tuple();
    for (const Index n : dims) w.integer(n);
    w.end_tuple();
  };
  pickle::Writer w;
  w.begin_call({"torch._utils", "_rebuild_tensor_v3"});
  w.begin_tuple();
  w.begin_tuple();
  w.text("storage");
  w.global({"torch.storage", "UntypedStorage"});
  w.text("0");
  w.text("cpu");
  w.integer(bytes);
  w.end_tuple();
  w.persistent();
  w.integer(0);
  tuple(w, shape);
  tuple(w, strides);
  w.boolean(false);
  w.begin_call({"collections", "OrderedDict"});
  w.begin_tuple();
  w.end_tuple();
  w.end_call();
  w.global({"torch", torch_name(dtype)});
  w.end_tuple();
  w.end_call();
  return std::move(w).finish();
}

/// A local header; sizes and checksum follow the content.
void put_local(std::string& out, std::string_view name, std::size_t padding) {
  put(out, 0x04034b50, 4);
  put(out, 45, 2);      // version: 64-bit sizes
  put(out, 0x0808, 2);  // UTF-8; sizes follow
  put(out, 0, 2 + 2 + 2 + 4 + 4);
  put(out, 0, 4);
  put(out, name.size(), 2);
  put(out, padding, 2);
  out += name;
  if (padding == 0) return;
  put(out, 0x4246, 2);
  put(out, padding - 4, 2);
  out.append(padding - 4, 'Z');
}

void put_descriptor(std::string& out, const ArchiveFile& file) {
  const int width = file.bytes >= kNarrow ? 8 : 4;
  put(out, 0x08074b50, 4);
  put(out, file.crc, 4);
  put(out, static_cast<std::uint64_t>(file.bytes), width);
  put(out, static_cast<std::uint64_t>(file.bytes), width);
}

void put_entry(std::string& out, const ArchiveFile& file) {
  const bool wide = file.bytes >= kNarrow;
  const auto size = static_cast<std::uint64_t>(file.bytes);
  put(out, 0x02014b50, 4);
  put(out, 45, 2);
  put(out, 45, 2);
  put(out, 0x0808, 2);
  put(out, 0, 2 + 2 + 2);
  put(out, file.crc, 4);
  put(out, wide ? 0xffffffff : size, 4);
  put(out, wide ? 0xffffffff : size, 4);
  put(out, file.name.size(), 2);
  put(out, wide ? 20 : 0, 2);
  put(out, 0, 2 + 2 + 2);
  put(out, 0, 4);
  put(out, static_cast<std::uint64_t>(file.offset), 4);
  out += file.name;
  if (!wide) return;
  put(out, 1, 2);
  put(out, 16, 2);
  put(out, size, 8);
  put(out, size, 8);
}

void put_end(std::string& out, std::size_t entries, std::int64_t directory,
             std::int64_t directory_bytes) {
  const auto at = static_cast<std::uint64_t>(directory);
  const auto bytes = static_cast<std::uint64_t>(directory_bytes);
  put(out, 0x06064b50, 4);
  put(out, 44, 8);
  put(out, 45, 2);
  put(out, 45, 2);
  put(out, 0, 4);
  put(out, 0, 4);
  put(out, entries, 8);
  put(out, entries, 8);
  put(out, bytes, 8);
  put(out, at, 8);
  put(out, 0x07064b50, 4);
  put(out, 0, 4);
  put(out, at + bytes, 8);
  put(out, 1, 4);
  put(out, 0x06054b50, 4);
  put(out, 0, 4);
  put(out, entries, 2);
  put(out, entries, 2);
  put(out, bytes, 4);
  put(out, directory >= kNarrow ? 0xffffffff : at, 4);
  put(out, 0, 2);
}

constexpr std::string_view kPickleName = "archive/data.pkl", kOrderName = "archive/byteorder",
                           kVersionName = "archive/version", kTensorName = "archive/data/0";

/// The head, and the files before the tensor.
struct ArchiveHead {
  std::string bytes;
  std::vector<ArchiveFile> files;
};

/// The files that describe the content of an archive.
ArchiveHead description_of(std::string_view pickle) {
  ArchiveHead head;
  const auto add = [&](std::string_view name, std::string_view content) {
    ArchiveFile file{name, static_cast<std::int64_t>(content.size()),
                     crc32(std::as_bytes(std::span(content))),
                     static_cast<std::int64_t>(head.bytes.size())};
    put_local(head.bytes, name, 0);
    head.bytes += content;
    put_descriptor(head.bytes, file);
    head.files.push_back(file);
  };
  add(kPickleName, pickle);
  add(kOrderName, "little");
  add(kVersionName, "3\n");
  return head;
}

ArchiveHead head_of(std::string_view pickle) {
  ArchiveHead head = description_of(pickle);
  const auto at = static_cast<std::int64_t>(head.bytes.size());
  constexpr std::size_t kHeader = 30;
  const std::size_t plain = head.bytes.size() + kHeader + kTensorName.size() + 4;
  put_local(head.bytes, kTensorName, 4 + (kAlignArchive - plain % kAlignArchive) % kAlignArchive);
  head.files.push_back({kTensorName, 0, 0, at});
  return head;
}

/// The directory of an archive whose files end at byte `at`.
std::string directory_of(const std::vector<ArchiveFile>& files, std::int64_t at) {
  std::string out;
  for (const ArchiveFile& file : files) put_entry(out, file);
  const auto bytes = static_cast<std::int64_t>(out.size());
  put_end(out, files.size(), at, bytes);
  return out;
}

/// The bytes after the tensor. `files`: all, the tensor last; it begins at `head_bytes`.
std::string tail_of(const std::vector<ArchiveFile>& files, std::int64_t head_bytes) {
  std::string out;
  put_descriptor(out, files.back());
  const std::int64_t end = head_bytes + files.back().bytes + static_cast<std::int64_t>(out.size());
  return out + directory_of(files, end);
}

}  // namespace

TorchArchive torch_archive(DType dtype, const Dims& shape) {
  const auto bytes = stored_bytes(dtype, shape);
  RESHARD_CHECK(bytes.has_value() && !torch_name(dtype).empty());
  TorchArchive archive;
  archive.tensor_bytes = *bytes;
  archive.pickle = tensor_pickle(dtype, shape, *bytes);
  archive.head = head_of(archive.pickle).bytes;
  archive.tail_bytes = static_cast<std::int64_t>(torch_archive_tail(archive, 0).size());
  return archive;
}

std::string object_archive(std::string_view pickle) {
  const ArchiveHead head = description_of(pickle);
  return head.bytes + directory_of(head.files, static_cast<std::int64_t>(head.bytes.size()));
}

std::string torch_archive_tail(const TorchArchive& archive, std::uint32_t crc) {
  std::vector<ArchiveFile> files = head_of(archive.pickle).files;
  files.back().bytes = archive.tensor_bytes;
  files.back().crc = crc;
  return tail_of(files, static_cast<std::int64_t>(archive.head.size()));
}

}  // namespace reshard::dcp
