// SPDX-License-Identifier: Apache-2.0
// Protects: what ranks send and what lies at a rendezvous is refused, or is what its format says;
// no order of frames confuses the hub.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/transport/tcp/coordinator_state.h"
#include "reshard/transport/tcp/frame.h"
#include "reshard/transport/tcp/rendezvous_address.h"

namespace {

using namespace reshard;
using namespace reshard::tcp;

template <class T>
void check_error(const Result<T>& result) {
  if (result) return;
  const auto& message = result.error().message;
  RESHARD_CHECK(!message.empty() && message.size() < 2000);
}

void check_frame(std::span<const std::byte> bytes) {
  const auto frame = parse_frame(bytes);
  check_error(frame);
  if (!frame) return;
  const std::vector<std::byte> again = encode(*frame).head;
  RESHARD_CHECK(std::ranges::equal(again, bytes));
}

void check_parts(std::span<const std::byte> bytes) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{1} << 60}) {
    const auto parts = parse_parts(bytes, count);
    check_error(parts);
    if (parts) RESHARD_CHECK(std::ranges::equal(encode_parts(*parts), bytes));
  }
  // Three parts are told apart alike, whether they are of one size or not.
  const auto parts = parse_parts(bytes, 3);
  for (const std::size_t each : {std::size_t{0}, std::size_t{5}}) {
    std::vector<std::byte> all(3 * each);
    const auto equal = parse_equal_parts(bytes, 3, each, all);
    check_error(equal);
    const bool same =
        parts && std::ranges::all_of(*parts, [&](const auto& part) { return part.size() == each; });
    RESHARD_CHECK(equal.has_value() == same);
    for (std::size_t r = 0; same && r < 3; ++r)
      RESHARD_CHECK(std::ranges::equal((*parts)[r], std::span(all).subspan(r * each, each)));
  }
}

void check_place(std::string_view text) {
  check_error(parse_url(text));
  check_error(check_job(text));
  const auto file = parse_rendezvous_file(text);
  check_error(file);
  if (file) {
    const auto again = parse_rendezvous_file(format_rendezvous_file(*file));
    RESHARD_CHECK(again && again->port == file->port && again->instance == file->instance &&
                  again->addresses == file->addresses &&
                  again->secret.text() == file->secret.text());
  }
}

/// Three ranks that do what the input says, two bytes a step. Whoever waits gets one answer, and
/// none who does not.
void drive_coordinator(std::span<const std::uint8_t> steps) {
  constexpr int kRanks = 3;
  std::vector<int> answers(kRanks, 0), asked(kRanks, 0);
  CoordinatorState group(kRanks, [&](Rank to, const Frame& out, FrameBody body) {
    const EncodedFrame encoded = encode(out, std::move(body));
    std::vector<std::byte> bytes = encoded.head;
    if (encoded.body) bytes.insert(bytes.end(), encoded.body->begin(), encoded.body->end());
    const auto frame = parse_frame(bytes);
    RESHARD_CHECK(frame.has_value());
    if (frame->kind == Kind::done || frame->kind == Kind::failed) ++answers[to.index()];
    RESHARD_CHECK(answers[to.index()] <= asked[to.index()]);
  });
  std::vector<bool> seated(kRanks, false);
  for (; steps.size() >= 2; steps = steps.subspan(2)) {
    const std::size_t r = steps[0] % kRanks;
    const Rank rank(static_cast<Rank::rep>(r));
    Frame frame{static_cast<Kind>(steps[1] % 12), steps[1] / 12U, r, kRanks, "", {}};
    frame.text = steps[0] >= 128 ? "barrier" : "all_gather";
    if (!seated[r]) {
      frame.kind = Kind::join;
      frame.bytes.resize(32, std::byte{static_cast<unsigned char>(steps[0] >> 7)});
      Frame refusal;
      ++asked[r];
      seated[r] = group.seat(frame, refusal).has_value();
      if (!seated[r]) --asked[r];
      group.start_if_complete();
    } else if (steps[1] >= 252) {
      group.on_lost(rank);
      seated[r] = group.started();
    } else {
      ++asked[r];
      if (!group.on_frame(rank, std::move(frame))) seated[r] = group.started();
    }
    group.send_tallies([](Rank) { return true; });
    if (group.finished()) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span input(data, size);
  check_frame(std::as_bytes(input));
  check_parts(std::as_bytes(input));
  check_place({reinterpret_cast<const char*>(data), size});
  drive_coordinator(input);
  return 0;
}
