// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <numeric>
#include <optional>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/gathered_writes.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"
#include "reshard/io/files/utf8.h"

namespace reshard {
namespace {

constexpr std::size_t kAlignment = 8;

template <class... Args>
tl::unexpected<Error> invalid(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Code::invalid_argument, fmt::format(format, std::forward<Args>(args)...));
}

Result<> check_text(std::string_view what, std::string_view text) {
  if (const auto at = files::find_invalid_utf8(text))
    return invalid("{} {} is not UTF-8 at byte {}", what, in_quotes(text), *at);
  return {};
}

Result<> check_names(std::span<const TensorSpec> tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    RESHARD_TRY(check_text("tensor name", tensor.name));
    if (tensor.name == "__metadata__") return invalid("tensor name \"__metadata__\" is reserved");
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return invalid("tensor {} is listed twice", in_quotes(*twice));
  return {};
}

/// The order in the file: wider elements first, so that each tensor is aligned to its element.
std::vector<std::size_t> file_order(std::span<const TensorSpec> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto element_bytes = [&](std::size_t i) { return std::max(1, bits(tensors[i].dtype) / 8); };
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return element_bytes(a) > element_bytes(b); });
  return order;
}

Result<std::string> metadata_text(const StringMap& metadata) {
  std::string text = "\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    RESHARD_TRY(check_text("metadata key", key));
    RESHARD_TRY(check_text("metadata value", value));
    if (text.back() != '{') text += ',';
    text += fmt::format("{}:{}", json_quote(key), json_quote(value));
  }
  return text + "}";
}

void append_tensor(const StoredTensor& tensor, std::string& json) {
  const auto end = std::back_inserter(json);
  fmt::format_to(end, "{}:{{\"dtype\":\"{}\",\"shape\":[{}],", json_quote(tensor.name),
                 name(tensor.dtype), fmt::join(tensor.shape, ","));
  fmt::format_to(end, "\"data_offsets\":[{},{}]}}", tensor.offset, tensor.offset + tensor.bytes);
}

}  // namespace

Result<SafetensorsPlan> plan_safetensors(std::span<const TensorSpec> tensors,
                                         const StringMap& metadata) {
  RESHARD_TRY(check_names(tensors));
  SafetensorsPlan plan;
  plan.tensors.resize(tensors.size());
  std::string json = "{";
  if (!metadata.empty()) json += RESHARD_TRY(metadata_text(metadata));
  std::int64_t end = 0;
  for (const std::size_t i : file_order(tensors)) {
    auto bytes = stored_bytes(tensors[i].dtype, tensors[i].shape);
    if (!bytes) return invalid("tensor {}: {}", in_quotes(tensors[i].name), bytes.error().message);
    plan.tensors[i] = StoredTensor{tensors[i], end, *bytes};
    if (__builtin_add_overflow(end, *bytes, &end))
      return invalid("tensor {}: the file has more bytes than 64 bits can count",
                     in_quotes(tensors[i].name));
    if (json.size() > 1) json += ',';
    append_tensor(plan.tensors[i], json);
  }
  json += '}';
  json.append((kAlignment - json.size() % kAlignment) % kAlignment, ' ');
  if (json.size() > std::size_t{kMaxSafetensorsHeader})
    return invalid("the header would have {} bytes, at most {} are allowed; use more files",
                   json.size(), kMaxSafetensorsHeader);
  for (std::size_t i = 0; i < 8; ++i) plan.head += static_cast<char>(json.size() >> (8 * i) & 0xff);
  plan.head += json;
  const auto data_offset = static_cast<std::int64_t>(plan.head.size());
  if (__builtin_add_overflow(end, data_offset, &plan.file_bytes))
    return invalid("the file has more bytes than 64 bits can count");
  for (auto& tensor : plan.tensors) tensor.offset += data_offset;
  return plan;
}

struct SafetensorsWriter::State {
  std::string path;
  FileDescriptor fd;
  std::vector<StoredTensor> tensors;
  std::int64_t file_bytes = 0;
  std::atomic<std::int64_t> written = 0;
  bool finished = false;
  Watcher watcher;
  std::optional<checkpoint::GatheredWrites> file = {};  ///< none if nothing is written.

  /// Shows bytes to the watcher and writes them, if there is a file.
  Result<> write(std::span<const std::byte> bytes, std::int64_t at) {
    if (watcher) watcher(at, bytes);
    if (file) RESHARD_TRY(file->write(bytes, at));
    written += static_cast<std::int64_t>(bytes.size());
    return {};
  }

  /// The place in the file of byte `offset` of the tensor. Checks that `bytes` bytes fit there.
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
  if (state_ && !state_->finished && !state_->path.empty()) ::unlink(state_->path.c_str());
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::vector<TensorSpec> tensors,
                                                    const StringMap& metadata, Watcher watcher) {
  return make(path, std::move(tensors), metadata, std::move(watcher));
}

Result<SafetensorsWriter> SafetensorsWriter::rehearse(std::vector<TensorSpec> tensors,
                                                      const StringMap& metadata, Watcher watcher) {
  return make("", std::move(tensors), metadata, std::move(watcher));
}

Result<SafetensorsWriter> SafetensorsWriter::make(const std::string& path,
                                                  std::vector<TensorSpec> tensors,
                                                  const StringMap& metadata, Watcher watcher) {
  auto plan = plan_safetensors(tensors, metadata);
  if (!plan) return tl::unexpected(std::move(plan).error().in(path));
  auto state = std::make_unique<State>();
  if (!path.empty()) state->fd = RESHARD_TRY(files::create_file(path, plan->file_bytes));
  state->path = path;
  if (state->fd) state->file.emplace(state->fd.get(), state->path, plan->file_bytes);
  state->tensors = std::move(plan->tensors);
  state->file_bytes = plan->file_bytes;
  state->watcher = std::move(watcher);
  SafetensorsWriter writer(std::move(state));
  RESHARD_TRY(writer.state_->write(std::as_bytes(std::span(plan->head)), 0));
  return writer;
}

const std::vector<StoredTensor>& SafetensorsWriter::tensors() const { return state_->tensors; }
std::int64_t SafetensorsWriter::file_bytes() const { return state_->file_bytes; }

Result<> SafetensorsWriter::write_at(std::size_t tensor, std::int64_t offset,
                                     std::span<const std::byte> data) {
  const auto bytes = static_cast<std::int64_t>(data.size());
  return state_->write(data, state_->place(tensor, offset, bytes));
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
  if (state_->fd) RESHARD_TRY(files::write_all(state_->fd.get(), state_->path, pieces, at));
  state_->written += bytes;
  return {};
}

Result<> SafetensorsWriter::finish(bool sync) {
  RESHARD_CHECK(!state_->finished);
  if (state_->written != state_->file_bytes)
    return fail(Code::invalid_argument,
                fmt::format("{}: {} bytes were written, the file has {}", state_->path,
                            state_->written.load(), state_->file_bytes));
  if (state_->file) RESHARD_TRY(state_->file->finish());
  if (state_->fd) RESHARD_TRY(files::close_written(std::move(state_->fd), state_->path, sync));
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
