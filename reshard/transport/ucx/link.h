// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"
#include "reshard/transport/messages/wire.h"
#include "reshard/transport/ucx/memory.h"

namespace reshard::ucx {

/// What a packet, the unit of order between two ranks, brings.
enum class Kind : std::uint32_t {
  frame = 1,  ///< a frame of the wire's user.
  memory,     ///< SharedMemory::Region::packed.
  hello,      ///< the first one: the rank reaches the receiver.
  ready,      ///< the rank has the hello of all.
  bye,        ///< the rank closes: that its endpoint fails from now on is no failure.
};

/// Goes before a packet and, with a bulk's tag for its place in the order, before a bulk.
struct Header {
  std::uint32_t from = 0;
  Kind kind{};
  std::uint64_t number = 0;  ///< of the packet among those of the pair; of a bulk its tag.
};

/// What this rank holds of one peer.
struct Peer {
  ucp_ep_h endpoint = nullptr;
  std::uint64_t sent = 0, received = 0;                                    ///< packets, in order.
  std::map<std::uint64_t, std::pair<Kind, std::vector<std::byte>>> early;  ///< by number.
  std::optional<ucs_status_t> failed;
  std::size_t out = 0;                      ///< packets that the library has not sent yet.
  bool unflushed = false;                   ///< packets went out that the library may still hold.
  Deadline flushed_by = Deadline::never();  ///< when the last flush counts as done.
  bool hello = false, ready = false, bye = false;
  /// A connection each way: what a peer said before it left may be read after the other one
  /// failed. So a failure counts when nothing has moved for a while, and in any case at the second.
  Deadline goodbye_until = Deadline::never(), gone_at = Deadline::never();
  PeerRegions memory;

  /// Nothing for it waits in the library, as far as can be known.
  bool drained() const { return !unflushed && (out == 0 || (out == 1 && flushed_by.expired())); }
  void fail(ucs_status_t status) {
    if (failed) return;
    failed = status;
    gone_at = Deadline::after(std::chrono::seconds(2));
    expect_goodbye();
  }
  void expect_goodbye() {
    goodbye_until = std::min(gone_at, Deadline::after(std::chrono::milliseconds(100)));
  }
};

/// A bulk that this rank expects, or that has been announced before it was expected.
struct Expected {
  std::span<std::byte> into;
  BulkId id{};
  void* announced = nullptr;  ///< the library's descriptor, or null.
  std::size_t bytes = 0;      ///< announced.
};

/// One operation that the library works on: what must live until it is over.
struct Operation {
  enum class What : std::uint8_t { idle, packet, bulk, put };
  class UcxWire* owner = nullptr;
  Peer* to = nullptr;  ///< of a packet.
  What what = What::idle;
  Header header;
  std::vector<std::byte> packet;
  BulkId id{};
  int parts = 0;  ///< callbacks still to come: a put is written and flushed.
  ucs_status_t status = UCS_OK;
};

}  // namespace reshard::ucx
