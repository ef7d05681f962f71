// SPDX-License-Identifier: Apache-2.0
// One rank's memory of a job with a quantised target, and what a reader may see of it.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "reshard/refit/session/quantised_suite_testutil.h"

namespace reshard::quantised {

/// Shards of it cut blocks: trainers on ranks 0 to 3, engines on 3 to 6, rank 7 is idle.
inline Case small_case() {
  for (const Case& c : cases())
    if (c.name == "mxfp8_cut") return c;
  return {};
}

/// All combinations of the side that quantises, the number of copies and the path of the bytes.
inline std::vector<Way> fault_ways() {
  std::vector<Way> out;
  for (const auto convert : {ConversionSide::receiver, ConversionSide::sender})
    for (const auto buffering : {Buffering::in_place, Buffering::doubled})
      for (const auto path : {RefitPath::direct, RefitPath::message}) {
        std::string name = convert == ConversionSide::receiver ? "receiver" : "sender";
        name += buffering == Buffering::in_place ? "_in_place" : "_doubled";
        name += path == RefitPath::direct ? "_direct" : "_messages";
        const Index staging = Index{path == RefitPath::direct ? 65536 : 96} << 10;
        out.push_back({name, convert, path, buffering, staging, 1});
      }
  return out;
}

/// Half of them, in which any two choices occur together once.
inline std::vector<Way> few_fault_ways() {
  std::vector<Way> few;
  for (const Way& way : fault_ways()) {
    const bool sender = way.convert == ConversionSide::sender;
    const bool doubled = way.buffering == Buffering::doubled;
    if ((way.path == RefitPath::message) == (sender != doubled)) few.push_back(way);
  }
  return few;
}

/// One rank's memory of a job, which processes that are forked later share.
struct Memory {
  RankBuffers from, to, back;
  Memory(const Job& job, Rank me)
      : from(mine(*job.source.stored, me)),
        to(mine(*job.target.stored, me)),
        back(mine(*job.target.stored, me)) {}
  bool has_target() const { return !to.ranks().empty(); }
  SessionSide source(const Job& job) const {
    SessionSide side = job.source.side();
    if (!from.ranks().empty()) side.buffers = &from;
    return side;
  }
  SessionSide target(const Job& job, PublishedVersion& published) const {
    SessionSide side = job.target.side();
    side.published = &published;
    if (!has_target()) return side;
    side.buffers = &to;
    side.back = &back;
    return side;
  }
  /// Local tensors that a reader would find wrong at `version`, which is the version of `is`; 0
  /// where it may read none.
  Index wrong(const TargetVersion& version, const Job& is) const {
    if (!has_target() || version.state != TargetState::whole) return 0;
    const RankBuffers& now = version.buffer == 0 ? to : back;
    const Rank me = now.ranks().front();
    Index different = 0;
    // Jobs have layouts of their own, and equal ones.
    for (const SlotId slot : now.layout().slots_of(me))
      different += std::memcmp(now.at(me, slot), is.target.stored->at(me, slot),
                               static_cast<std::size_t>(now.bytes(me, slot))) != 0;
    return different;
  }
};

/// Whether a reader may see this after a refit of version `now` failed that began at `old`.
inline bool may_be_seen(const TargetVersion& version, Buffering buffering, std::int64_t old,
                        std::int64_t now) {
  if (version.state == TargetState::whole) return version.version == old || version.version == now;
  return buffering == Buffering::in_place && version.state == TargetState::torn &&
         version.version == old;
}

}  // namespace reshard::quantised
