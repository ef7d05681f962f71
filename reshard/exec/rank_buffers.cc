// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/rank_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

namespace reshard {
namespace {

constexpr Index kAlignment = 64;
constexpr std::uintptr_t kPageBytes = 4096;

Index aligned(Index bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Error missing_memory(const char* side, const ModelLayout& layout, Rank r, SlotId slot) {
  return {Code::invalid_argument,
          fmt::format("{} buffer of local tensor '{}' on rank {} is not set", side,
                      layout.slot(slot).name, r.value())};
}

Index bytes_of_rank(const ModelLayout& layout, Rank r) {
  Index total = 0;
  for (SlotId s : layout.slots_of(r)) total += aligned(bytes_of_local(layout, r, s));
  return total;
}

RankBuffers::RankBuffers(std::shared_ptr<const ModelLayout> layout) : layout_(std::move(layout)) {}

Result<RankBuffers> RankBuffers::allocate(std::shared_ptr<const ModelLayout> layout,
                                          std::span<const Rank> ranks,
                                          HostBuffer::Options options) {
  RankBuffers out(std::move(layout));
  for (Rank r : ranks) {
    const Index total = bytes_of_rank(*out.layout_, r);
    auto buffer = HostBuffer::allocate(total, options);
    if (!buffer)
      return tl::unexpected(std::move(buffer).error().in(
          fmt::format("weights of rank {} ({} bytes)", r.value(), total)));
    RESHARD_TRY(out.bind_rank(r, {buffer->data(), static_cast<std::size_t>(total)}));
    out.owned_.push_back({r, *std::move(buffer)});
  }
  return out;
}

Result<> RankBuffers::bind_rank(Rank r, std::span<std::byte> memory) {
  const Index total = bytes_of_rank(*layout_, r);
  if (static_cast<Index>(memory.size()) < total)
    return fail(Code::invalid_argument,
                fmt::format("the local tensors of rank {} need {} bytes in {}, not {}", r.value(),
                            total, layout_->name(), memory.size()));
  if (r.index() >= address_.size()) address_.resize(r.index() + 1);
  auto& address = address_[r.index()];
  address.assign(static_cast<std::size_t>(layout_->num_slots()), nullptr);
  if (r.index() < read_only_.size()) read_only_[r.index()].clear();
  Index at = 0;
  for (SlotId s : layout_->slots_of(r)) {
    const Index n = bytes_of_local(*layout_, r, s);
    if (n > 0) address[s.index()] = memory.data() + at;
    at += aligned(n);
  }
  return {};
}

Result<> RankBuffers::bind(Rank r, SlotId slot, std::span<std::byte> memory) {
  return bind(r, slot, memory, false);
}

Result<> RankBuffers::bind(Rank r, SlotId slot, std::span<std::byte> memory, bool read_only) {
  const Slot& s = layout_->slot(slot);
  if (!layout_->rank_set(s.ranks).contains(r))
    return fail(Code::invalid_argument, fmt::format("rank {} has no local tensor '{}' in {}",
                                                    r.value(), s.name, layout_->name()));
  const Index want = bytes_of_local(*layout_, r, slot);
  if (static_cast<Index>(memory.size()) != want)
    return fail(Code::invalid_argument,
                fmt::format("local tensor '{}' of rank {} has {} bytes in {}, not {}", s.name,
                            r.value(), want, layout_->name(), memory.size()));
  if (r.index() >= address_.size()) address_.resize(r.index() + 1);
  auto& address = address_[r.index()];
  if (address.empty()) address.assign(static_cast<std::size_t>(layout_->num_slots()), nullptr);
  address[slot.index()] = memory.empty() ? nullptr : memory.data();
  if (read_only_.size() < address_.size() && read_only) read_only_.resize(address_.size());
  if (r.index() >= read_only_.size()) return {};
  auto& flags = read_only_[r.index()];
  if (flags.empty() && read_only) flags.assign(address.size(), false);
  if (!flags.empty()) flags[slot.index()] = read_only;
  return {};
}

Result<> RankBuffers::bind_read_only(Rank r, SlotId slot, std::span<const std::byte> memory) {
  // Sources are never written: the executors take their addresses as const.
  return bind(r, slot, {const_cast<std::byte*>(memory.data()), memory.size()}, true);
}

Index RankBuffers::bytes(Rank r, SlotId slot) const { return bytes_of_local(*layout_, r, slot); }

std::vector<std::span<std::byte>> RankBuffers::memory(Rank r) const {
  struct Range {
    std::uintptr_t begin = 0, end = 0;
  };
  std::vector<Range> ranges;
  const auto add = [&](const std::byte* data, Index size) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    if (data != nullptr) ranges.push_back({begin, begin + static_cast<std::uintptr_t>(size)});
  };
  for (const Owned& o : owned_)
    if (o.rank == r) add(o.buffer.data(), o.buffer.size());
  if (r.index() < address_.size())
    for (std::size_t s = 0; s < address_[r.index()].size(); ++s)
      if (const std::byte* data = address_[r.index()][s]; data != nullptr)
        add(data, bytes(r, SlotId(static_cast<SlotId::rep>(s))));
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<std::span<std::byte>> out;
  const auto close = [&](const Range& range) {
    out.emplace_back(reinterpret_cast<std::byte*>(range.begin), range.end - range.begin);
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    // The whole gap is in pages of its two neighbours, so it is mapped if they are.
    const bool joins = i + 1 < ranges.size() &&
                       ranges[i + 1].begin / kPageBytes <= (ranges[i].end - 1) / kPageBytes + 1;
    if (!joins) {
      close(ranges[i]);
      continue;
    }
    ranges[i + 1].begin = ranges[i].begin;
    ranges[i + 1].end = std::max(ranges[i].end, ranges[i + 1].end);
  }
  return out;
}

std::vector<Rank> RankBuffers::ranks() const {
  std::vector<Rank> out;
  for (std::size_t r = 0; r < address_.size(); ++r)
    if (!address_[r].empty()) out.push_back(Rank(static_cast<Rank::rep>(r)));
  return out;
}

/// A local tensor with bytes.
struct MemoryCheck::Tensor {
  std::uintptr_t begin, end;
  std::size_t side;  ///< in buffers_.
  Rank rank;
  SlotId slot;
  bool is_written() const { return side > 0; }
};

namespace {

/// For texts, by place in MemoryCheck::buffers_.
const char* name_of_side(std::size_t side) {
  if (side == 0) return "source";
  return side % 2 == 1 ? "target" : "back";
}

}  // namespace

bool MemoryCheck::equal(const Approved& approved, const RankBuffers* now,
                        std::optional<Rank> only) {
  if (now == nullptr || approved.layout == nullptr) return now == nullptr && !approved.layout;
  return approved.layout == now->layout_ && approved.only == only &&
         approved.address == now->address_ && approved.read_only == now->read_only_;
}

void MemoryCheck::approve(Approved& approved, const RankBuffers* now, std::optional<Rank> only) {
  if (now == nullptr) {
    approved = {};
    return;
  }
  approved.layout = now->layout_;
  approved.only = only;
  approved.address = now->address_;
  approved.read_only = now->read_only_;
}

std::vector<MemoryCheck::Tensor> MemoryCheck::tensors(std::optional<Rank> only) const {
  std::vector<Tensor> out;
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    if (buffers_[k] == nullptr) continue;
    for (const Rank r : buffers_[k]->ranks()) {
      if (only && r != *only) continue;
      for (const SlotId slot : buffers_[k]->layout().slots_of(r)) {
        const std::byte* const at = buffers_[k]->at(r, slot);
        if (at == nullptr) continue;
        const auto begin = reinterpret_cast<std::uintptr_t>(at);
        const auto bytes = static_cast<std::uintptr_t>(buffers_[k]->bytes(r, slot));
        out.push_back({begin, begin + bytes, k, r, slot});
      }
    }
  }
  return out;
}

std::string MemoryCheck::first_trouble(std::optional<Rank> only) const {
  const auto name = [&](const Tensor& t) -> const std::string& {
    return buffers_[t.side]->layout().slot(t.slot).name;
  };
  const auto prefix = [&](const Tensor& t) {
    const std::string rank = only ? "" : fmt::format("rank {}: ", t.rank.value());
    return fmt::format("{}{} tensor '{}': ", rank, name_of_side(t.side), name(t));
  };
  std::vector<Tensor> all = tensors(only);
  for (const Tensor& t : all)
    if (t.is_written() && buffers_[t.side]->read_only(t.rank, t.slot))
      return prefix(t) + "is read-only, but a refit writes it";
  std::ranges::sort(all, {}, [](const Tensor& t) {
    return std::tuple(t.begin, t.side, t.rank.value(), t.slot.value());
  });
  // Of the tensors so far, those that reach furthest: of all, and of those that are written.
  const Tensor *last = nullptr, *last_written = nullptr;
  for (const Tensor& t : all) {
    const Tensor* const before = t.is_written() ? last : last_written;
    if (before != nullptr && t.begin < before->end) {
      // The one that is written is named first.
      const auto& [mine, other] = t.is_written() ? std::pair(t, *before) : std::pair(*before, t);
      const std::string whose =
          mine.side == other.side
              ? fmt::format("'{}' of rank {}", name(other), other.rank.value())
              : fmt::format("{} tensor '{}'", name_of_side(other.side), name(other));
      return prefix(mine) + "shares memory with " + whose + "; each needs its own";
    }
    if (last == nullptr || t.end > last->end) last = &t;
    if (t.is_written() && (last_written == nullptr || t.end > last_written->end)) last_written = &t;
  }
  return "";
}

std::string MemoryCheck::trouble(const Sides& sides) {
  buffers_.assign({sides.source, sides.target, sides.back});
  for (const Written& more : sides.more) {
    buffers_.push_back(more.target);
    buffers_.push_back(more.back);
  }
  bool known = has_approved_ && approved_.size() == buffers_.size();
  for (std::size_t k = 0; k < buffers_.size(); ++k)
    known = known && equal(approved_[k], buffers_[k], sides.only);
  if (known) return "";
  has_approved_ = false;
  std::string trouble = first_trouble(sides.only);
  if (!trouble.empty()) return trouble;
  approved_.resize(buffers_.size());
  for (std::size_t k = 0; k < buffers_.size(); ++k) approve(approved_[k], buffers_[k], sides.only);
  has_approved_ = true;
  return "";
}

Result<> check_memory(const MemoryCheck::Sides& sides) {
  std::string trouble = MemoryCheck().trouble(sides);
  if (!trouble.empty()) return fail(Code::invalid_argument, std::move(trouble));
  return {};
}

const std::shared_ptr<const cuda::Device>& gpu_of(const RankBuffers* source,
                                                  const RankBuffers* target) {
  static const std::shared_ptr<const cuda::Device> none;
  if (source != nullptr && source->device() != nullptr) return source->device();
  return target != nullptr ? target->device() : none;
}

}  // namespace reshard
