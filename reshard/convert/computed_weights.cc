// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/computed_weights.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "reshard/base/file.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/layout_side.h"
#include "reshard/io/make_layout.h"
#include "reshard/memory/worker_pool.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Elements that a thread computes at once.
constexpr Index kPart = Index{1} << 20;

/// A temporary file, already unlinked.
FileDescriptor unlinked_file(const std::string& folder) {
  std::string name = (fs::path(folder) / "reshard-XXXXXX").string();
  FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file) ::unlink(name.c_str());
  return file;
}

}  // namespace

ComputedWeights::ComputedWeights(ComputedWeights&& other) noexcept
    : tensors_(std::move(other.tensors_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

ComputedWeights& ComputedWeights::operator=(ComputedWeights&& other) noexcept {
  std::swap(tensors_, other.tensors_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

ComputedWeights::~ComputedWeights() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
}

Result<> ComputedWeights::map_file() {
  const char* const said = std::getenv("TMPDIR");
  const std::string folder = said != nullptr && *said != '\0' ? said : "/tmp";
  const FileDescriptor file = unlinked_file(folder);
  // Room is taken now: a full disk would otherwise end the process at a write.
  int error = file ? ::posix_fallocate(file.get(), 0, size_) : errno;
  void* at = MAP_FAILED;
  if (error == 0) {
    at = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ | PROT_WRITE, MAP_SHARED,
                file.get(), 0);
    error = at == MAP_FAILED ? errno : 0;
  }
  if (error != 0)
    return fail(
        Code::io,
        fmt::format("'{}': a temporary file of {} bytes for computed weights: {}; name another "
                    "folder in the environment variable TMPDIR",
                    folder, size_, std::strerror(error)));
  data_ = static_cast<std::byte*>(at);
  return {};
}

Result<ComputedWeights> ComputedWeights::compute(const Model& model, const ModelLayout& own) {
  ComputedWeights out;
  if (holds_codes(model, own)) return out;
  for (const auto& [name, codes] : model.storage->decoded) {
    if (auto valid = check_codes(name, codes); !valid)
      return tl::unexpected(std::move(valid).error().in(model.name));
    if (!model.storage->merged.contains(name)) out.add(model, name, {.base = codes});
  }
  for (const auto& [name, weight] : model.storage->merged) out.add(model, name, weight.values);
  if (out.size_ == 0) return out;
  RESHARD_TRY(out.map_file());
  out.compute_all();
  return out;
}

void ComputedWeights::add(const Model& model, const std::string& name, MergedTensor values) {
  const auto id = model.tensors->find(name);
  if (!id) return;
  const CanonicalTensor& t = (*model.tensors)[*id];
  tensors_.emplace(name, Tensor{std::move(values), t.dtype, size_, t.bytes()});
  size_ += (t.bytes() + 63) / 64 * 64;
}

void ComputedWeights::compute_all() {
  struct Part {
    const Tensor* tensor;
    Index first, count;
  };
  std::vector<Part> parts;
  for (const auto& [name, tensor] : tensors_) {
    const Index count = tensor.bytes * 8 / bits(tensor.dtype);
    for (Index first = 0; first < count; first += kPart)
      parts.push_back({&tensor, first, std::min(kPart, count - first)});
  }
  WorkerPool pool(0);
  std::atomic<std::size_t> next{0};
  auto body = [&](int) {
    for (std::size_t i = next++; i < parts.size(); i = next++) {
      const auto& [tensor, first, count] = parts[i];
      merge(tensor->values, first, count, tensor->dtype,
            data_ + tensor->offset + first * bits(tensor->dtype) / 8);
    }
  };
  pool.run(body);
}

std::span<const std::byte> ComputedWeights::values_of(const std::string& tensor) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) return {};
  return {data_ + found->second.offset, static_cast<std::size_t>(found->second.bytes)};
}

}  // namespace reshard
