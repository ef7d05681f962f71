// SPDX-License-Identifier: Apache-2.0
// Protects: transforms behave as the source document core.resharding.transforms says, sentence by
// sentence.
#include "reshard/megatron/transforms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "reshard/megatron/mxfp8_transform.h"
#include "reshard/transform/convert.h"

namespace reshard::megatron {
namespace {

using ::testing::HasSubstr;

/// A bf16 matrix of numbers that differ, also in size from block to block.
std::shared_ptr<OwnedTensor> numbers(const Dims& shape) {
  auto plain = *make_tensor(DType::f32, shape);
  for (Index i = 0; i < plain.view.num_elements(); ++i) {
    const float value = std::ldexp(static_cast<float>(i % 97) - 48, static_cast<int>(i / 32 % 11));
    std::memcpy(plain.view.data + 4 * i, &value, 4);
  }
  auto out = std::make_shared<OwnedTensor>(*make_tensor(DType::bf16, shape));
  convert_values({{DType::f32}, {DType::bf16}}, plain.view.data, out->view.data,
                 plain.view.num_elements());
  return out;
}

Tensor parameter(const std::shared_ptr<OwnedTensor>& memory) {
  Tensor t;
  t.view = memory->view;
  t.owner = memory;
  return t;
}

std::string bytes(const TensorView& view) {
  const auto all = bytes_of(view);
  return {reinterpret_cast<const char*>(all.data()), all.size()};
}

TEST(ReshardTransform, transforms_nothing_by_default) {
  EXPECT_FALSE(ReshardTransform().should_transform("decoder.layers.0.weight"));
}

// transforms: "The default implementation sends the BF16 slice unchanged (single tensor)."
TEST(ReshardTransform, sends_the_slice_unchanged_by_default) {
  const auto memory = numbers({4, 64});
  ReshardTransform transform;
  const auto sent = transform.prepare_send("w", Box{{1, 3}, {0, 64}}, parameter(memory), {});
  ASSERT_TRUE(sent);
  ASSERT_EQ(sent->size(), 1U);
  EXPECT_EQ((*sent)[0].view.data, memory->view.data + 128);
  EXPECT_EQ((*sent)[0].view.shape, (Dims{2, 64}));
  EXPECT_EQ((*sent)[0].view.dtype, DType::bf16);
}

// transforms: "abstractmethod prepare_recv", "abstractmethod finalize_recv"
TEST(ReshardTransform, leaves_receiving_to_who_implements_it) {
  ReshardTransform transform;
  const auto received = transform.prepare_recv("w", Box{{0, 1}});
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, Code::unsupported);
  EXPECT_THAT(received.error().message, HasSubstr("'w'"));
  EXPECT_FALSE(transform.finalize_recv("w", Box{{0, 1}}, {}));
}

// transforms: "All dimensions except the last are passed through unchanged; the last slice has its
// start/stop divided by block_size."
TEST(ScaleSliceFromDataSlice, divides_the_ends_of_the_last_dimension) {
  EXPECT_EQ(*scale_slice_from_data_slice({range(3, 7), range(32, 96)}),
            (Slice{range(3, 7), range(1, 3)}));
  EXPECT_EQ(*scale_slice_from_data_slice({index(5), range(64, 128)}),
            (Slice{index(5), range(2, 4)}));
  EXPECT_EQ(*scale_slice_from_data_slice({all(), all()}), (Slice{all(), all()}));
  EXPECT_EQ(*scale_slice_from_data_slice({DimSlice{64, std::nullopt}}),
            (Slice{DimSlice{2, std::nullopt}}));
  EXPECT_EQ(*scale_slice_from_data_slice({range(0, 32)}, 16), (Slice{range(0, 2)}));
}

// transforms: "Integer index on the last dim is converted to scale index as idx // block_size."
TEST(ScaleSliceFromDataSlice, divides_an_index_of_the_last_dimension) {
  EXPECT_EQ(*scale_slice_from_data_slice({range(0, 2), index(95)}), (Slice{range(0, 2), index(2)}));
  EXPECT_EQ(*scale_slice_from_data_slice({index(31)}), (Slice{index(0)}));
}

TEST(ScaleSliceFromDataSlice, refuses_ends_inside_a_block) {
  EXPECT_FALSE(scale_slice_from_data_slice({range(0, 33)}));
  const auto cut = scale_slice_from_data_slice({range(16, 64)});
  ASSERT_FALSE(cut);
  EXPECT_THAT(cut.error().message, HasSubstr("ends at 16"));
  EXPECT_FALSE(scale_slice_from_data_slice({}));
}

// transforms: "Quantized parameter types are dequantized to their original precision (usually
// BF16). Standard parameters are returned via .data."
TEST(EnsureSendable, dequantises_mxfp8_and_lends_plain_memory) {
  const auto memory = numbers({4, 64});
  Tensor t = parameter(memory);
  EXPECT_EQ(ensure_sendable(t)->view.data, memory->view.data);
  t.mxfp8 = *from_bf16(memory->view, true);
  const auto plain = ensure_sendable(t);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->view.dtype, DType::bf16);
  EXPECT_EQ(plain->view.shape, (Dims{4, 64}));
  EXPECT_NE(plain->view.data, memory->view.data);
  // Quantising the dequantised once more changes nothing.
  EXPECT_EQ(bytes((*from_bf16(plain->view, true))->data), bytes(t.mxfp8->data));
}

TEST(MXFP8Tensor, scales_are_rows_or_tiles_of_the_same_bytes) {
  const auto memory = numbers({200, 160});
  const auto rows = *from_bf16(memory->view, false), tiles = *from_bf16(memory->view, true);
  EXPECT_EQ(rows->scale.shape, (Dims{200, 5}));
  EXPECT_EQ(tiles->scale.shape, (Dims{256 * 8}));
  EXPECT_EQ(bytes(rows->data), bytes(tiles->data));
  const auto put = *make_mxfp8({200, 160}, true);
  ASSERT_TRUE(put_scales(rows->scale, 0, 0, *put));
  EXPECT_EQ(bytes(put->scale), bytes(tiles->scale));
  EXPECT_FALSE(make_mxfp8({4, 33}, false));
  EXPECT_FALSE(make_mxfp8({64}, false));
  MXFP8Tensor wrong = *rows;
  wrong.scale.shape = {200, 4};
  EXPECT_FALSE(check_mxfp8(wrong));
  EXPECT_FALSE(quantise_part(memory->view, 1, 0, *rows));
  EXPECT_FALSE(quantise_part(*slice(memory->view, Box{{0, 4}, {0, 48}}), 0, 0, *rows));
}

// transforms: "buffer_key_prefix: str = ''", "convert_on_send: bool = False"
TEST(MXFP8ReshardTransform, converts_on_receive_and_strips_nothing_by_default) {
  const auto buffer = *make_mxfp8({4, 64}, false);
  MXFP8ReshardTransform transform({"decoder.w"}, {{"decoder.w", buffer}});
  EXPECT_FALSE(transform.convert_on_send());
  EXPECT_TRUE(transform.prepare_recv("decoder.w", Box{{0, 4}, {0, 64}}));
}

// transforms: "identical to the default reshard path", "Because the wire format is unchanged the
// sender does not need a transform - only the receiver creates one."
TEST(MXFP8ReshardTransform, that_converts_on_receive_sends_what_no_transform_sends) {
  const Tensor source = parameter(numbers({4, 64}));
  const Box box{{1, 3}, {0, 64}};
  MXFP8ReshardTransform ours({"w"}, {});
  ReshardTransform plain;
  const auto a = ours.prepare_send("w", box, source, box),
             b = plain.prepare_send("w", box, source, box);
  ASSERT_TRUE(a && b);
  ASSERT_EQ(a->size(), b->size());
  EXPECT_EQ((*a)[0].view.data, (*b)[0].view.data);
  EXPECT_EQ((*a)[0].view.shape, (*b)[0].view.shape);
  EXPECT_EQ((*a)[0].view.dtype, (*b)[0].view.dtype);
  // transforms: "The receiver allocates a BF16 receive buffer"
  const auto room =
      MXFP8ReshardTransform({"w"}, {{"w", *make_mxfp8({4, 64}, false)}}).prepare_recv("w", box);
  ASSERT_TRUE(room);
  ASSERT_EQ(room->size(), 1U);
  EXPECT_EQ((*room)[0].view.dtype, DType::bf16);
}

/// Scales 2-D or 1-D, converted on receive or on send.
class Mxfp8Modes : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  bool swizzled() const { return std::get<0>(GetParam()); }
  bool on_send() const { return std::get<1>(GetParam()); }

  Mxfp8Modes()
      : source_(parameter(numbers({130, 192}))),
        want_(*from_bf16(source_.view, swizzled())),
        got_(*make_mxfp8({130, 192}, swizzled())),
        sender_({"decoder.w"}, {}, "decoder.", on_send()),
        receiver_({"decoder.w"}, {{"w", got_}}, "decoder.", on_send()) {}

  /// One slice on its way; equal slices on both sides.
  Result<> move(const Box& box) {
    const auto sent = RESHARD_TRY(sender_.prepare_send("decoder.w", box, source_, box));
    const auto room = RESHARD_TRY(receiver_.prepare_recv("decoder.w", box));
    EXPECT_EQ(sent.size(), room.size());
    for (std::size_t i = 0; i < sent.size(); ++i) RESHARD_TRY(copy(sent[i].view, room[i].view));
    return receiver_.finalize_recv("decoder.w", box, room);
  }

  void expect_right() {
    EXPECT_EQ(bytes(got_->data), bytes(want_->data));
    EXPECT_EQ(bytes(got_->scale), bytes(want_->scale));
  }

  Tensor source_;
  std::shared_ptr<MXFP8Tensor> want_, got_;
  MXFP8ReshardTransform sender_, receiver_;
};

INSTANTIATE_TEST_SUITE_P(All, Mxfp8Modes, ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& mode) {
                           return std::string(std::get<0>(mode.param) ? "tiles" : "rows") +
                                  (std::get<1>(mode.param) ? "_on_send" : "_on_receive");
                         });

// transforms: "set of fully-qualified parameter names that should use this transform"
TEST_P(Mxfp8Modes, transform_the_parameters_that_are_listed) {
  EXPECT_TRUE(receiver_.should_transform("decoder.w"));
  EXPECT_FALSE(receiver_.should_transform("w"));
}

// transforms: "convert_on_send=False: The sender transmits plain BF16 (one tensor per op, identical
// to the default reshard path)"; "convert_on_send=True: The sender converts each BF16 slice to
// MXFP8 and sends two tensors (data + scale) per op."
TEST_P(Mxfp8Modes, send_values_or_data_and_scales) {
  const Box box{{2, 5}, {64, 128}};
  const auto sent = sender_.prepare_send("decoder.w", box, source_, box);
  ASSERT_TRUE(sent);
  if (!on_send()) {
    ASSERT_EQ(sent->size(), 1U);
    EXPECT_EQ((*sent)[0].view.dtype, DType::bf16);
    return;
  }
  ASSERT_EQ(sent->size(), 2U);
  EXPECT_EQ((*sent)[0].view.dtype, DType::f8_e4m3);
  EXPECT_EQ((*sent)[0].view.shape, (Dims{3, 64}));
  EXPECT_EQ((*sent)[1].view.shape, (Dims{3, 2}));
  // transforms: "This mode halves wire bandwidth (~1 byte/elem vs 2)."
  EXPECT_EQ(num_bytes((*sent)[0].view) + num_bytes((*sent)[1].view), 3 * 64 + 3 * 2);
}

// transforms: "Count must match prepare_send output."
TEST_P(Mxfp8Modes, make_room_for_as_many_tensors_of_the_same_sizes) {
  for (const Box& box : {Box{{2, 5}, {64, 128}}, Box{{2, 5}, {60, 128}}}) {
    const auto sent = sender_.prepare_send("decoder.w", box, source_, box);
    const auto room = receiver_.prepare_recv("decoder.w", box);
    ASSERT_TRUE(sent && room);
    ASSERT_EQ(sent->size(), room->size());
    for (std::size_t i = 0; i < sent->size(); ++i) {
      EXPECT_EQ((*sent)[i].view.shape, (*room)[i].view.shape);
      EXPECT_EQ(num_bytes((*sent)[i].view), num_bytes((*room)[i].view));
    }
  }
}

// transforms: "Writes received weight data directly into persistent MXFP8Tensor buffers so that
// CUDA-graph device-pointer captures remain valid across refits."
TEST_P(Mxfp8Modes, write_in_place_again_and_again) {
  const std::byte *data = got_->data.data, *scale = got_->scale.data;
  for (int round = 0; round < 3; ++round) {
    std::ranges::fill(bytes_of(got_->data), std::byte{0xee});
    receiver_.begin();
    EXPECT_EQ(move(Box{{0, 130}, {0, 192}}).has_value(), true);
    EXPECT_TRUE(receiver_.finish());
    expect_right();
  }
  EXPECT_EQ(receiver_.persistent_buffers().at("w")->data.data, data);
  EXPECT_EQ(receiver_.persistent_buffers().at("w")->scale.data, scale);
}

TEST_P(Mxfp8Modes, put_slices_together) {
  for (const Box& box : {Box{{0, 70}, {0, 64}}, Box{{70, 130}, {0, 64}}, Box{{0, 130}, {64, 192}}})
    ASSERT_TRUE(move(box));
  EXPECT_TRUE(receiver_.finish());
  expect_right();
}

// Slices that cut a block of 32 are gathered until the block is whole.
TEST_P(Mxfp8Modes, gather_slices_that_cut_blocks) {
  for (const Box& box : {Box{{0, 130}, {0, 16}}, Box{{0, 65}, {16, 50}}, Box{{65, 130}, {16, 64}},
                         Box{{0, 65}, {50, 192}}, Box{{65, 130}, {64, 192}}})
    ASSERT_TRUE(move(box));
  EXPECT_TRUE(receiver_.finish());
  expect_right();
}

// 1-D scales: "accumulate until every element has arrived, then quantise once".
TEST_P(Mxfp8Modes, quantise_a_weight_with_tiles_of_scales_once_all_of_it_has_arrived) {
  std::ranges::fill(bytes_of(got_->data), std::byte{0xee});
  ASSERT_TRUE(move(Box{{0, 100}, {0, 192}}));
  const bool waits = swizzled() && !on_send();
  EXPECT_EQ(got_->data.data[0] == std::byte{0xee}, waits);
  ASSERT_TRUE(move(Box{{100, 130}, {0, 192}}));
  expect_right();
}

TEST_P(Mxfp8Modes, more_elements_than_the_weight_has_are_an_error) {
  ASSERT_TRUE(move(Box{{0, 100}, {0, 192}}));
  const auto more = move(Box{{90, 130}, {0, 192}});
  ASSERT_FALSE(more);
  EXPECT_THAT(more.error().message, HasSubstr("'decoder.w'"));
  EXPECT_THAT(more.error().message, HasSubstr("26880 elements arrived, 24960 expected"));
}

TEST_P(Mxfp8Modes, fewer_elements_than_the_weight_has_are_an_error) {
  ASSERT_TRUE(move(Box{{0, 100}, {0, 192}}));
  const auto less = receiver_.finish();
  ASSERT_FALSE(less);
  EXPECT_THAT(less.error().message, HasSubstr("19200 elements arrived, 24960 expected"));
  EXPECT_TRUE(receiver_.finish()) << "the next refit begins anew";
}

// transforms: "dict mapping parameter names (without buffer_key_prefix) to MXFP8Tensor objects";
// "prefix to strip from param_name when looking up entries in persistent_buffers"
TEST_P(Mxfp8Modes, find_buffers_by_the_name_without_prefix) {
  EXPECT_TRUE(receiver_.prepare_recv("decoder.w", Box{{0, 1}, {0, 32}}));
  const auto other = receiver_.prepare_recv("decoder.v", Box{{0, 1}, {0, 32}});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::not_found);
  EXPECT_THAT(other.error().message, HasSubstr("no persistent buffer 'v'"));
  EXPECT_FALSE(receiver_.prepare_recv("decoder.w", Box{{0, 131}, {0, 32}}));
  // transforms: "Empty on the sender when using convert_on_send=True."
  EXPECT_FALSE(sender_.prepare_recv("decoder.w", Box{{0, 1}, {0, 32}}));
}

TEST_P(Mxfp8Modes, take_tensors_of_the_callers_own) {
  const Box box{{0, 130}, {0, 192}};
  const auto sent = sender_.prepare_send("decoder.w", box, source_, box);
  ASSERT_TRUE(receiver_.finalize_recv("decoder.w", box, *sent));
  expect_right();
  EXPECT_FALSE(receiver_.finalize_recv("decoder.w", box, {}));
}

}  // namespace
}  // namespace reshard::megatron
