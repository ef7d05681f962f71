// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/safetensors_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

#include "reshard/base/check.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"

namespace reshard {

struct SafetensorsWriter::State {
  std::string path;
  FileDescriptor fd;
  std::vector<StoredTensor> tensors;
  std::int64_t file_bytes = 0;
  std::atomic<std::int64_t> written = 0;
  bool finished = false;
  Watcher watcher;

  /// Where byte `offset` of the tensor is in the file, after checking that `bytes` more fit.
  std::int64_t place(std::size_t tensor, std::int64_t offset, std::int64_t bytes) const {
    RESHARD_CHECK(tensor < tensors.size());
    const auto& to = tensors[tensor];
    RESHARD_CHECK(offset >= 0 && offset <= to.bytes && bytes <= to.bytes - offset);
    return to.offset + offset;
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
SafetensorsWriter::~SafetensorsWriter() {
  if (state_ && !state_->finished) ::unlink(state_->path.c_str());
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::vector<TensorSpec> tensors,
                                                    const StringMap& metadata, Watcher watcher) {
  auto plan = plan_safetensors(tensors, metadata);
  if (!plan) return tl::unexpected(std::move(plan).error().in(path));
  auto state = std::make_unique<State>();
  state->fd = RESHARD_TRY(create_file(path, plan->file_bytes));
  state->path = path;
  state->tensors = std::move(plan->tensors);
  state->file_bytes = plan->file_bytes;
  state->watcher = std::move(watcher);
  SafetensorsWriter writer(std::move(state));
  if (writer.state_->watcher) writer.state_->watcher(0, std::as_bytes(std::span(plan->head)));
  RESHARD_TRY(write_all(writer.state_->fd.get(), path, std::as_bytes(std::span(plan->head)), 0));
  writer.state_->written = static_cast<std::int64_t>(plan->head.size());
  return writer;
}

const std::vector<StoredTensor>& SafetensorsWriter::tensors() const { return state_->tensors; }
std::int64_t SafetensorsWriter::file_bytes() const { return state_->file_bytes; }

Result<> SafetensorsWriter::write_at(std::size_t tensor, std::int64_t offset,
                                     std::span<const std::byte> data) {
  const auto bytes = static_cast<std::int64_t>(data.size());
  const auto at = state_->place(tensor, offset, bytes);
  if (state_->watcher) state_->watcher(at, data);
  RESHARD_TRY(write_all(state_->fd.get(), state_->path, data, at));
  state_->written += bytes;
  return {};
}

Result<> SafetensorsWriter::write_pieces_at(std::size_t tensor, std::int64_t offset,
                                            std::span<const std::span<const std::byte>> pieces) {
  std::int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += static_cast<std::int64_t>(piece.size());
  const auto at = state_->place(tensor, offset, bytes);
  std::int64_t next = at;
  for (const auto& piece : pieces) {
    if (state_->watcher) state_->watcher(next, piece);
    next += static_cast<std::int64_t>(piece.size());
  }
  RESHARD_TRY(write_all(state_->fd.get(), state_->path, pieces, at));
  state_->written += bytes;
  return {};
}

Result<> SafetensorsWriter::finish(bool sync) {
  RESHARD_CHECK(!state_->finished);
  if (state_->written != state_->file_bytes)
    return fail(Code::invalid_argument,
                fmt::format("{}: {} bytes were written, the file has {}", state_->path,
                            state_->written.load(), state_->file_bytes));
  RESHARD_TRY(close_written(std::move(state_->fd), state_->path, sync));
  state_->finished = true;
  return {};
}

Result<> write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                           const StringMap& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& tensor : tensors) specs.push_back(tensor.spec);
  auto writer = RESHARD_TRY(SafetensorsWriter::create(path, std::move(specs), metadata));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& place = writer.tensors()[i];
    if (static_cast<std::int64_t>(tensors[i].data.size()) != place.bytes)
      return fail(Code::invalid_argument,
                  fmt::format("{}: tensor {}: {} bytes of data, must be {}", path,
                              in_quotes(place.name), tensors[i].data.size(), place.bytes));
    RESHARD_TRY(writer.write_at(i, 0, tensors[i].data));
  }
  return writer.finish();
}

}  // namespace reshard
