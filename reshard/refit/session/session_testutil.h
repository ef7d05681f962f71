// SPDX-License-Identifier: Apache-2.0
// A changing model for tests of sessions, and ranks that refit it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/refit/session.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

/// The bytes of a side at any version: those of fill_elements(), every byte of a fragment changed
/// by the version's own. Different for any two of 255 versions in a row, in every byte.
class VersionedBytes {
 public:
  explicit VersionedBytes(const RankBuffers& like) : layout_(like.shared_layout()) {
    auto copy = RankBuffers::allocate(layout_, like.ranks());
    fill_elements(*copy);
    for (const Rank r : like.ranks())
      for (const SlotId slot : layout_->slots_of(r)) add(*copy, r, slot);
  }

  void fill(const RankBuffers& buffers, std::int64_t version) const {
    const std::byte change = byte_of(version);
    for (const Part& part : parts_) {
      std::byte* at = buffers.at(part.rank, part.slot);
      for (std::size_t i = 0; i < part.base.size(); ++i)
        if (part.covered[i]) at[i] = part.base[i] ^ change;
    }
  }

  /// Bytes of fragments that are not the version's.
  Index wrong(const RankBuffers& buffers, std::int64_t version) const {
    const std::byte change = byte_of(version);
    Index wrong = 0;
    for (const Part& part : parts_) {
      const std::byte* at = buffers.at(part.rank, part.slot);
      for (std::size_t i = 0; i < part.base.size(); ++i)
        wrong += part.covered[i] && at[i] != (part.base[i] ^ change) ? 1 : 0;
    }
    return wrong;
  }

 private:
  struct Part {
    Rank rank;
    SlotId slot;
    std::vector<std::byte> base;
    std::vector<bool> covered;
  };

  static std::byte byte_of(std::int64_t version) {
    return static_cast<std::byte>(version % 255 + 1);
  }

  void add(const RankBuffers& filled, Rank r, SlotId slot) {
    const auto bytes = static_cast<std::size_t>(filled.bytes(r, slot));
    if (bytes == 0) return;
    const std::byte* at = filled.at(r, slot);
    Part part{r, slot, {at, at + bytes}, std::vector<bool>(bytes)};
    const auto width = static_cast<std::size_t>(bits(layout_->slot(slot).dtype) / 8);
    for (const Fragment& fragment : layout_->local(slot, r).fragments)
      for_each_element(layout_->model(), fragment, [&](Index, Index local) {
        for (std::size_t b = 0; b < width; ++b)
          part.covered[static_cast<std::size_t>(local) * width + b] = true;
      });
    parts_.push_back(std::move(part));
  }

  std::shared_ptr<const ModelLayout> layout_;
  std::vector<Part> parts_;
};

/// Two layouts of one model.
struct SessionLayouts {
  std::shared_ptr<const ModelLayout> from, to;
  int ranks = 1;
  SessionLayouts(const ModelConfig& config, const std::string& source, const std::string& target,
                 int num_ranks)
      : ranks(num_ranks) {
    const auto model = model_of(config);
    from = layout_of(source, model, config);
    to = layout_of(target, model, config);
  }
  SessionLayouts(std::shared_ptr<const ModelLayout> source,
                 std::shared_ptr<const ModelLayout> target, int num_ranks)
      : from(std::move(source)), to(std::move(target)), ranks(num_ranks) {}
};

/// Two trainer stages of two ranks, four engine ranks, one of them a trainer's too, and one idle.
inline SessionLayouts overlapping_job() {
  return {tiny_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4,offset=3", 8};
}

inline SessionOptions session_options(Buffering buffering, RefitPath path,
                                      VerifyMode verify = VerifyMode::never) {
  SessionOptions options;
  options.buffering = buffering;
  options.refit.path = path;
  options.verify = verify;
  return options;
}

/// The same with so little staging that a small model takes many messages.
inline SessionOptions in_small_messages(SessionOptions options) {
  options.refit.staging_bytes = Index{32} << 10;
  options.refit.in_place_bytes = 1024;
  return options;
}

/// One rank's memory of both sides.
struct SessionMemory {
  RankBuffers source, target, back;
  VersionedBytes source_bytes, target_bytes;

  SessionMemory(const SessionLayouts& layouts, Rank me, HostBuffer::Options how = {})
      : source(mine(layouts.from, me, how)),
        target(mine(layouts.to, me, how)),
        back(mine(layouts.to, me, how)),
        source_bytes(source),
        target_bytes(target) {}

  SessionSide source_side() const {
    return {.layout = source.shared_layout(), .buffers = given(source)};
  }
  SessionSide target_side(PublishedVersion* published = nullptr) const {
    return {.layout = target.shared_layout(),
            .buffers = given(target),
            .back = given(back),
            .published = published};
  }
  /// Collective. A session of both sides.
  Result<Session> prepare(RankEnds& ends, const SessionOptions& options,
                          PublishedVersion* published = nullptr) const {
    return Session::prepare(*ends.transport, *ends.control, source_side(), target_side(published),
                            options);
  }
  /// Wrong bytes of what a reader would read at `version`; 0 where it may read nothing.
  Index wrong(const TargetVersion& version) const {
    if (version.state != TargetState::whole) return 0;
    return target_bytes.wrong(version.buffer == 0 ? target : back, version.version);
  }

 private:
  static RankBuffers mine(const std::shared_ptr<const ModelLayout>& layout, Rank me,
                          HostBuffer::Options how) {
    const std::vector<Rank> ranks(layout->ranks().contains(me) ? 1 : 0, me);
    return *RankBuffers::allocate(layout, ranks, how);
  }
  static const RankBuffers* given(const RankBuffers& buffers) {
    return buffers.ranks().empty() ? nullptr : &buffers;
  }
};

}  // namespace reshard
