// SPDX-License-Identifier: Apache-2.0
// Protects: no host code touches the bytes of a message that are on a GPU, on either side, whatever
// the size, the method, the failure or the peer; touching them ends the process of the test.
#include <gtest/gtest.h>

#include "reshard/transport/messages/matcher.h"
#include "reshard/transport/testing/conformance_testutil.h"
#include "reshard/transport/testing/loopback_testutil.h"
#include "reshard/transport/testing/script_wire_testutil.h"

namespace reshard {
namespace {

using messages::FrameReader;
using messages::Kind;
using messages::Method;
using messages::Record;

MessageMemories on_gpus() { return {UntouchableMemory::instance(), UntouchableMemory::instance()}; }
MessageMemories gpu_to_host() { return {UntouchableMemory::instance(), host_memories().recvs}; }
MessageMemories host_to_gpu() { return {host_memories().sends, UntouchableMemory::instance()}; }

template <LoopbackMethod kWay>
TransportUnderTest loopback(std::function<MessageMemories()> memory) {
  return {"loopback", run_group_as_threads<LoopbackGroup<kWay, true>>, std::move(memory)};
}
RESHARD_TEST_MESSAGES(GpuTagged, loopback<LoopbackMethod::tagged>(on_gpus));
RESHARD_TEST_MESSAGES(GpuToHost, loopback<LoopbackMethod::pull>(gpu_to_host));
RESHARD_TEST_MESSAGES(HostToGpu, loopback<LoopbackMethod::put>(host_to_gpu));

/// Memories that place a rank's messages on the host and on the GPU by turns.
MessageMemories by_turns() {
  class Turns final : public MessageMemory {
   public:
    std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
      if (++count_ % 2 == 0) return host_->allocate(bytes);
      return UntouchableMemory::instance()->allocate(bytes);
    }
    void write(std::byte* to, std::span<const std::byte> from) override {
      UntouchableMemory::instance()->write(to, from);
    }
    void read(std::span<std::byte> to, const std::byte* from) override {
      UntouchableMemory::instance()->read(to, from);
    }

   private:
    std::shared_ptr<MessageMemory> host_ = std::make_shared<HostMessageMemory>();
    int count_ = 0;
  };
  return {std::make_shared<Turns>(), std::make_shared<Turns>()};
}

template <LoopbackMethod kWay>
void send_all_sizes_in_all_ways() {
  const auto body = [](RankEnds& me) {
    Traffic traffic(me);
    const std::size_t sizes[] = {0, 1, 64, 65, 4096, 4097, 5'000'000};
    for (const int peer : {0, 1}) {
      std::uint64_t id = 0;
      for (const std::size_t size : sizes) {
        // Sends are in host memory by turns, receives by turns of two: all four combinations.
        for (int pair = 0; pair < (size > 5000 ? 1 : 2); ++pair, id += 2) {
          for (const std::uint64_t i : {0U, 1U}) traffic.send(Rank{peer}, MessageId{id + i}, size);
          for (const std::uint64_t i : {1U, 0U}) {
            if (pair == 0) traffic.recv(Rank{peer}, MessageId{id + i}, size);
            if (pair == 1) traffic.recv(Rank{peer}, MessageId{id + 1 - i}, size);
          }
        }
      }
    }
    EXPECT_EQ(outcome(step(*me.transport, traffic.sends, traffic.recvs())), "");
    EXPECT_EQ(traffic.wrong(), 0U);
    // Small messages from host memory beyond the eager window, again and again.
    for (std::uint64_t round = 0; round < 4; ++round) {
      Traffic small(me);
      for (std::uint64_t i = 0; i < 200; ++i) {
        const std::uint64_t number = 1000 * (round + 1) + i;
        small.send(Rank{1 - me.rank().value()}, MessageId{number}, 4000);
        small.recv(Rank{1 - me.rank().value()}, MessageId{number}, 4000);
      }
      EXPECT_EQ(outcome(step(*me.transport, small.sends, small.recvs())), "");
      EXPECT_EQ(small.wrong(), 0U);
    }
  };
  EXPECT_EQ(outcome(loopback<kWay>(by_turns).run_with_memory(2, body)), "");
}

TEST(GpuMessages, of_all_sizes_mix_with_those_in_host_memory) {
  send_all_sizes_in_all_ways<LoopbackMethod::pull>();
  send_all_sizes_in_all_ways<LoopbackMethod::put>();
  send_all_sizes_in_all_ways<LoopbackMethod::tagged>();
}

/// One rank gives its message up after a few polls and frees the memory at once; the other's call
/// ends, and with success only if the message was complete.
void give_up_after(int polls, bool by_sender, std::size_t bytes, MessageMemories (*memory)()) {
  const auto body = [&](RankEnds& me) {
    const bool sends = me.rank() == Rank{0};
    Traffic traffic(me);
    if (sends) traffic.send(Rank{1}, MessageId{1}, bytes);
    if (!sends) traffic.recv(Rank{0}, MessageId{1}, bytes);
    auto event = me.transport->exchange(traffic.sends, traffic.recvs());
    ASSERT_TRUE(event) << outcome(event);
    if (sends == by_sender) {
      for (int i = 0; i < polls; ++i) (void)(*event)->test();
      event->reset();
      traffic = Traffic(me);
    } else if (const Result<> ended = (*event)->wait(brief())) {
      EXPECT_EQ(traffic.wrong(), 0U);
    } else {
      EXPECT_NE(ended.error().code, Code::corrupt) << outcome(ended);
    }
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  };
  EXPECT_EQ(outcome(loopback<LoopbackMethod::tagged>(memory).run_with_memory(2, body)), "");
}

TEST(GpuMessages, that_a_rank_gives_up_leave_their_memory_free) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20})
    for (const bool by_sender : {false, true})
      for (const int polls : {0, 2})
        for (const auto memory : {on_gpus, gpu_to_host, host_to_gpu})
          give_up_after(polls, by_sender, bytes, memory);
}

/// Rank 0 of 2, with `gpu_` on its GPU; the test plays rank 1.
class GpuRecords : public testing::Test {
 protected:
  GpuRecords() { script_->gpu = gpu_.bytes(); }
  std::unique_ptr<Event> exchange(const std::vector<Send>& sends, const std::vector<Recv>& recvs) {
    if (!transport_)
      transport_ = messages::make_transport(std::make_unique<ScriptWire>(script_, 2), control_);
    auto event = transport_->exchange(sends, recvs);
    EXPECT_TRUE(event) << outcome(event);
    return std::move(*event);
  }
  void deliver(Event& event, const Record& record) {
    Bytes frame;
    messages::append(frame, record);
    script_->to_deliver.push_back({Rank{1}, frame});
    (void)event.test();
    (void)event.test();
  }
  /// The records sent since the last call, without their tails.
  std::vector<Record> sent() {
    std::vector<Record> out;
    for (const auto& frame : std::exchange(script_->sent, {}))
      for (FrameReader reader(frame.bytes); !reader.at_end();) out.push_back(*reader.next());
    return out;
  }
  Kind last_sent() {
    const auto records = sent();
    return records.empty() ? Kind{} : records.back().kind;
  }

  const Block gpu_{UntouchableMemory::instance(), std::size_t{64}};
  Bytes host_ = Bytes(4000);
  std::shared_ptr<WireScript> script_ = std::make_shared<WireScript>();
  LoneControl control_{2};
  std::unique_ptr<Transport> transport_;
};

TEST_F(GpuRecords, small_bytes_on_a_gpu_are_announced_and_go_as_a_bulk) {
  script_->describes_sources = true;
  const auto event = exchange({{Rank{1}, MessageId{1}, gpu_.bytes()}}, {});
  const auto records = sent();
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].kind, Kind::rts);
  EXPECT_EQ(records[0].detail, 1);
  deliver(*event, {Kind::cts, static_cast<std::uint8_t>(Method::tagged), {0, 7, 0}});
  EXPECT_EQ(script_->bulks.size(), 1U);
}

TEST_F(GpuRecords, a_peer_cannot_make_this_rank_frame_bytes_on_a_gpu) {
  const auto event = exchange({{Rank{1}, MessageId{1}, gpu_.bytes()}}, {});
  deliver(*event, {Kind::cts, static_cast<std::uint8_t>(Method::framed), {0, 7, 0}});
  expect_error(event->wait(patient()), Code::corrupt, {"rank 1", "on a GPU"});
}

TEST_F(GpuRecords, eager_bytes_for_a_gpu_are_asked_for_again_as_a_bulk) {
  const auto event = exchange({}, {{Rank{1}, MessageId{1}, gpu_.bytes()}});
  const Bytes payload(64);
  deliver(*event, {Kind::payload, 0, {5, 1}, payload});
  EXPECT_EQ(last_sent(), Kind::retry);
  EXPECT_EQ(event->test(), false);
  deliver(*event, {Kind::rts, 0, {5, 1, 64}});
  EXPECT_EQ(last_sent(), Kind::cts);
  EXPECT_EQ(script_->bulks.size(), 1U);
}

TEST_F(GpuRecords, a_peer_that_sends_eager_bytes_again_is_refused) {
  const auto event = exchange({}, {{Rank{1}, MessageId{1}, gpu_.bytes()}});
  const Bytes payload(64);
  deliver(*event, {Kind::payload, 0, {5, 1}, payload});
  deliver(*event, {Kind::payload, 0, {5, 1}, payload});
  EXPECT_EQ(last_sent(), Kind::refuse);
  EXPECT_TRUE(script_->bulks.empty());
}

TEST_F(GpuRecords, the_address_of_a_sender_is_not_pulled_into_a_gpu) {
  const auto event = exchange({}, {{Rank{1}, MessageId{1}, gpu_.bytes()}});
  const Bytes address(16);
  deliver(*event, {Kind::rts, 0, {5, 1, 64}, address});
  EXPECT_EQ(last_sent(), Kind::cts);
  EXPECT_EQ(script_->bulks.size(), 1U);
}

TEST_F(GpuRecords, bytes_on_a_peers_gpu_are_not_framed_even_if_this_rank_has_none) {
  script_->gpu = {};
  const auto event = exchange({}, {{Rank{1}, MessageId{1}, std::span(host_).first(64)}});
  deliver(*event, {Kind::rts, 1, {5, 1, 64}});
  const auto records = sent();
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].kind, Kind::cts);
  EXPECT_EQ(records[0].detail, static_cast<std::uint8_t>(Method::tagged));
}

TEST_F(GpuRecords, no_bytes_on_a_gpu_are_no_message) {
  const auto event = exchange({}, {{Rank{1}, MessageId{1}, std::span(host_).first(0)}});
  deliver(*event, {Kind::rts, 1, {5, 1, 0}});
  expect_error(event->wait(patient()), Code::corrupt, {"rank 1"});
}

TEST_F(GpuRecords, eager_bytes_that_are_asked_for_again_leave_the_window) {
  const std::size_t fit = messages::kEagerWindow / host_.size();
  std::vector<Send> sends;
  for (std::size_t i = 0; i <= fit; ++i) sends.push_back({Rank{1}, MessageId{i}, host_});
  const auto event = exchange(sends, {});
  auto records = sent();
  ASSERT_EQ(records.size(), fit + 1);
  EXPECT_EQ(records[fit - 1].kind, Kind::payload);
  EXPECT_EQ(records[fit].kind, Kind::rts);
  deliver(*event, {Kind::retry, 0, {0}});
  EXPECT_EQ(last_sent(), Kind::rts);
  const auto more =
      exchange({{Rank{1}, MessageId{900}, host_}, {Rank{1}, MessageId{901}, host_}}, {});
  records = sent();
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].kind, Kind::payload) << "one message has made room for one";
  EXPECT_EQ(records[1].kind, Kind::rts);
  // A second retry of the same message is not asked for by a correct peer.
  deliver(*event, {Kind::retry, 0, {0}});
  expect_error(event->wait(patient()), Code::corrupt, {"retry"});
}

}  // namespace
}  // namespace reshard
