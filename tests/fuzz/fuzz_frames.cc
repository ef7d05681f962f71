// SPDX-License-Identifier: Apache-2.0
// Protects: whatever peers write into their frames, the message engine touches its own memory only,
// and every event ends.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/transport/messages/frames.h"
#include "reshard/transport/testing/script_wire_testutil.h"

namespace {

using namespace reshard;

/// The input as frames of ranks 1 and 2: a byte that says which and how long, then the frame.
std::deque<WireScript::Frame> frames_in(std::span<const std::byte> input) {
  std::deque<WireScript::Frame> frames;
  while (!input.empty()) {
    const auto head = std::to_integer<std::size_t>(input[0]);
    const auto bytes = input.subspan(1, std::min(input.size() - 1, (head & 0x7f) * 8));
    frames.push_back({Rank(1 + static_cast<int>(head >> 7)), {bytes.begin(), bytes.end()}});
    input = input.subspan(1 + bytes.size());
  }
  return frames;
}

void read_all(std::span<const std::byte> frame) {
  messages::FrameReader reader(frame);
  std::vector<std::byte> again;
  while (!reader.at_end()) {
    const auto record = reader.next();
    if (!record) return;
    again.clear();
    messages::append(again, *record);
    RESHARD_CHECK(again.size() == messages::encoded_bytes(*record));
    RESHARD_CHECK(messages::FrameReader(again).next().has_value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size));
  const auto script = std::make_shared<WireScript>();
  script->describes_sources = (data[0] & 1) != 0;
  script->describes_targets = (data[0] & 2) != 0;
  script->to_deliver = frames_in(input.subspan(1));
  for (const auto& frame : script->to_deliver) read_all(frame.bytes);

  LoneControl control(3);
  const auto transport = messages::make_transport(std::make_unique<ScriptWire>(script, 3), control);
  std::vector<std::byte> memory(40'000);
  constexpr std::array<std::size_t, 5> kSizes = {0, 8, 100, 3000, 5000};
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  std::span<std::byte> left(memory);
  for (std::uint64_t i = 0; i < 2 * kSizes.size(); ++i) {
    const Rank peer(static_cast<int>(1 + i % 2));
    const std::size_t bytes = kSizes[i / 2];
    sends.push_back({peer, MessageId{i / 2}, left.first(bytes)});
    recvs.push_back({peer, MessageId{i / 2}, left.subspan(bytes, bytes)});
    left = left.subspan(2 * bytes);
  }
  auto event = transport->exchange(sends, recvs);
  RESHARD_CHECK(event.has_value());
  const std::size_t polls = script->to_deliver.size() + 1;
  Result<bool> done = false;
  for (std::size_t i = 0; i < polls && done && !*done; ++i) done = (*event)->test();
  transport->close();
  const auto end = (*event)->wait(Deadline::never());
  RESHARD_CHECK(end || end.error().message.find('\n') == std::string::npos);
  return 0;
}
