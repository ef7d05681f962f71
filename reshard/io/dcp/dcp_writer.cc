// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/dcp_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <optional>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/gathered_writes.h"
#include "reshard/io/dcp/crc32.h"
#include "reshard/io/dcp/known_classes.h"
#include "reshard/io/dcp/metadata.h"
#include "reshard/io/dcp/sharded_files.h"
#include "reshard/io/dcp/torch_archive.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"
#include "reshard/io/pickle/writer.h"

namespace reshard {
namespace {

constexpr std::int64_t kItemAlignment = 64;

std::int64_t aligned_item(std::int64_t at) {
  return (at + kItemAlignment - 1) / kItemAlignment * kItemAlignment;
}

}  // namespace

Result<DcpFilePlan> plan_dcp_file(std::span<const TensorSpec> tensors) {
  DcpFilePlan plan;
  for (const TensorSpec& tensor : tensors) {
    auto bytes = stored_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return tl::unexpected(std::move(bytes).error().in(in_quotes(tensor.name)));
    if (dcp::torch_name(tensor.dtype).empty())
      return fail(Code::unsupported,
                  fmt::format("{}: torch has no {}", in_quotes(tensor.name), name(tensor.dtype)));
    const dcp::TorchArchive archive = dcp::torch_archive(tensor.dtype, tensor.shape);
    const std::int64_t begin = aligned_item(plan.file_bytes);
    plan.items.push_back({begin, archive.bytes()});
    plan.tensors.push_back(
        {tensor, begin + static_cast<std::int64_t>(archive.head.size()), *bytes});
    if (__builtin_add_overflow(begin, archive.bytes(), &plan.file_bytes) ||
        plan.file_bytes > (std::int64_t{1} << 62))
      return fail(Code::invalid_argument,
                  fmt::format("{}: the file has more bytes than 64 bits can count",
                              in_quotes(tensor.name)));
  }
  return plan;
}

struct DcpWriter::State {
  std::string path;
  FileDescriptor fd;
  DcpFilePlan plan;
  std::vector<dcp::TorchArchive> archives;
  std::deque<dcp::PiecewiseCrc32> checksums;  ///< one per tensor.
  std::atomic<std::int64_t> written = 0;
  std::int64_t expected = 0;
  bool finished = false;
  Watcher watcher;
  std::optional<checkpoint::GatheredWrites> file = {};  ///< none if nothing is written.

  Result<> write(std::int64_t at, std::span<const std::byte> bytes) {
    if (watcher) watcher(at, bytes);
    return file ? file->write(bytes, at) : Result<>();
  }
  Result<> write(std::int64_t at, const std::string& bytes) {
    return write(at, std::as_bytes(std::span(bytes)));
  }
  /// The gap after an item, up to the next.
  Result<> write_gap(std::size_t i) {
    const std::int64_t end = plan.items[i].offset + plan.items[i].bytes;
    const std::int64_t next = i + 1 < plan.items.size() ? plan.items[i + 1].offset : end;
    return write(end, std::string(static_cast<std::size_t>(next - end), '\0'));
  }
};

DcpWriter::DcpWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
DcpWriter::DcpWriter(DcpWriter&&) noexcept = default;
DcpWriter& DcpWriter::operator=(DcpWriter&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
DcpWriter::~DcpWriter() {
  if (state_ && !state_->finished && !state_->path.empty()) ::unlink(state_->path.c_str());
}

Result<DcpWriter> DcpWriter::create(const std::string& path, std::span<const TensorSpec> tensors,
                                    Watcher watcher) {
  return make(path, tensors, std::move(watcher));
}

Result<DcpWriter> DcpWriter::rehearse(std::span<const TensorSpec> tensors, Watcher watcher) {
  return make("", tensors, std::move(watcher));
}

Result<DcpWriter> DcpWriter::make(const std::string& path, std::span<const TensorSpec> tensors,
                                  Watcher watcher) {
  auto plan = plan_dcp_file(tensors);
  if (!plan) return tl::unexpected(std::move(plan).error().in(path));
  auto state = std::make_unique<State>();
  if (!path.empty()) state->fd = RESHARD_TRY(files::create_file(path, plan->file_bytes));
  state->path = path;
  if (state->fd) state->file.emplace(state->fd.get(), state->path, plan->file_bytes);
  state->plan = *std::move(plan);
  state->watcher = std::move(watcher);
  DcpWriter writer(std::move(state));
  State& s = *writer.state_;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    s.archives.push_back(dcp::torch_archive(tensors[i].dtype, tensors[i].shape));
    s.checksums.emplace_back();
    s.expected += s.plan.tensors[i].bytes;
    RESHARD_TRY(s.write(s.plan.items[i].offset, s.archives.back().head));
  }
  return writer;
}

Result<> DcpWriter::write_at(std::size_t tensor, std::int64_t offset,
                             std::span<const std::byte> data) {
  RESHARD_CHECK(tensor < state_->plan.tensors.size());
  const StoredTensor& to = state_->plan.tensors[tensor];
  const auto bytes = static_cast<std::int64_t>(data.size());
  RESHARD_CHECK(offset >= 0 && offset <= to.bytes && bytes <= to.bytes - offset);
  state_->checksums[tensor].add(offset, data);
  RESHARD_TRY(state_->write(to.offset + offset, data));
  state_->written += bytes;
  return {};
}

Result<> DcpWriter::finish(bool sync) {
  State& s = *state_;
  RESHARD_CHECK(!s.finished);
  if (s.written != s.expected)
    return fail(Code::invalid_argument, fmt::format("{}: {} bytes of tensors were written of {}",
                                                    s.path, s.written.load(), s.expected));
  for (std::size_t i = 0; i < s.archives.size(); ++i) {
    const StoredTensor& tensor = s.plan.tensors[i];
    RESHARD_TRY(s.write(tensor.offset + tensor.bytes,
                        dcp::torch_archive_tail(s.archives[i], s.checksums[i].value())));
    RESHARD_TRY(s.write_gap(i));
  }
  if (s.file) RESHARD_TRY(s.file->finish());
  if (s.fd) RESHARD_TRY(files::close_written(std::move(s.fd), s.path, sync));
  s.finished = true;
  return {};
}

std::string dcp_metadata(std::span<const TensorSpec> tensors, std::span<const DcpPiece> pieces,
                         std::span<const DcpObject> objects) {
  dcp::Metadata metadata;
  std::map<std::string_view, std::size_t> ids;
  for (const TensorSpec& t : tensors) {
    ids.emplace(t.name, metadata.tensors.size());
    metadata.tensors.push_back({t.name, t.dtype, t.shape, {}});
  }
  for (const DcpPiece& piece : pieces) {
    const auto id = ids.find(piece.tensor);
    RESHARD_CHECK(id != ids.end());
    metadata.tensors[id->second].chunks.push_back(
        {piece.offsets, piece.sizes, {piece.file, piece.item.offset, piece.item.bytes}});
  }
  std::erase_if(metadata.tensors, [](const dcp::Tensor& t) { return t.chunks.empty(); });
  for (const DcpObject& object : objects)
    metadata.others.push_back(
        {object.name, "", {object.file, object.item.offset, object.item.bytes}});
  return dcp::metadata_bytes(metadata);
}

std::string saved_none() {
  pickle::Writer w;
  w.begin_list();
  w.none();
  w.end_list();
  return dcp::object_archive(std::move(w).finish());
}

std::string megatron_common(bool stacked) {
  pickle::Writer w;
  w.begin_dict();
  w.text("content_metadata");
  w.begin_dict();
  w.text("non_homogeneous_layers");
  w.boolean(!stacked);
  w.text("singleton_local_shards");
  w.boolean(false);
  w.end_dict();
  w.end_dict();
  return dcp::object_archive(std::move(w).finish());
}

StringMap sharded_file_metadata(std::span<const DcpPiece> pieces) {
  std::string text = "{";
  for (const DcpPiece& piece : pieces) {
    if (text.size() > 1) text += ", ";
    text += fmt::format("{}: {{\"saved_offsets\": {}}}", json_quote(piece.tensor),
                        to_string(piece.offsets));
  }
  return {{dcp::kShardingInfo, text + "}"}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
}

std::string sharded_file_name(Rank rank) {
  return fmt::format("shard-{:05}-model-00001-of-00001.safetensors", rank.value() + 1);
}

std::string dcp_file_name(Rank rank) { return fmt::format("__{}_0.distcp", rank.value()); }

}  // namespace reshard
