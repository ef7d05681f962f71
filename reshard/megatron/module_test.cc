// SPDX-License-Identifier: Apache-2.0
// Protects: a refit sees the tensors of a module that the source documents say it does.
#include "reshard/megatron/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace reshard::megatron {
namespace {

using ::testing::ElementsAre;

std::array<std::byte, 1024> memory;

TensorView view(const Dims& shape, DType dtype = DType::bf16) {
  return *tensor_view(
      std::span(memory).first(static_cast<std::size_t>(volume(shape) * bits(dtype) / 8)), dtype,
      shape);
}

std::vector<std::string> names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> out;
  for (const NamedTensor& t : tensors) out.push_back(t.name);
  return out;
}

Module small_model() {
  Module m;
  EXPECT_TRUE(m.submodule("embedding").register_parameter("weight", view({4, 2})));
  Module& layer = m.submodule("decoder.layers.0");
  EXPECT_TRUE(layer.submodule("mlp.router").register_parameter("weight", view({4, 2})));
  EXPECT_TRUE(layer.submodule("mlp.router").register_buffer("expert_bias", view({4})));
  EXPECT_TRUE(layer.submodule("mlp.router").register_buffer("tokens", view({4}), false));
  EXPECT_TRUE(layer.register_parameter("scale", view({2})));
  return m;
}

TEST(Module, parameters_come_depth_first_and_a_module_before_its_children) {
  Module m = small_model();
  EXPECT_THAT(names(named_parameters(m)), ElementsAre("embedding.weight", "decoder.layers.0.scale",
                                                      "decoder.layers.0.mlp.router.weight"));
}

TEST(Module, a_tensor_that_two_modules_hold_is_one_parameter) {
  Module m = small_model();
  const TensorPtr tied = named_parameters(m)[0].tensor;
  EXPECT_TRUE(m.submodule("output_layer").share_parameter("weight", tied));
  EXPECT_EQ(named_parameters(m).size(), 3U);
}

// utils: "Yield (full_name, parent_module, buf_name, tensor) for every persistent buffer in module.
// Skips _non_persistent_buffers_set."
TEST(Module, named_persistent_buffers_yields_persistent_buffers_with_their_parents) {
  Module m = small_model();
  const auto buffers = named_persistent_buffers(m);
  ASSERT_EQ(buffers.size(), 1U);
  EXPECT_EQ(buffers[0].full_name, "decoder.layers.0.mlp.router.expert_bias");
  EXPECT_EQ(buffers[0].parent, &m.submodule("decoder.layers.0.mlp.router"));
  EXPECT_EQ(buffers[0].name, "expert_bias");
  EXPECT_EQ(buffers[0].tensor, buffers[0].parent->buffer("expert_bias"));
}

// utils: "Yield (name, tensor) pairs for every parameter and persistent buffer."
TEST(Module, named_refit_tensors_are_parameters_and_persistent_buffers) {
  Module m = small_model();
  EXPECT_THAT(
      names(named_refit_tensors(m)),
      ElementsAre("embedding.weight", "decoder.layers.0.scale",
                  "decoder.layers.0.mlp.router.weight", "decoder.layers.0.mlp.router.expert_bias"));
}

// utils: "Return the cached {name: tensor} dict for module, building it if needed."
TEST(Module, get_refit_tensor_dict_is_made_once_and_kept_on_the_module) {
  Module m = small_model();
  const auto first = get_refit_tensor_dict(m);
  EXPECT_EQ(first->items().size(), 4U);
  ASSERT_NE(first->find("embedding.weight"), nullptr);
  EXPECT_EQ(*first->find("embedding.weight"), named_parameters(m)[0].tensor);
  EXPECT_EQ(first->find("tokens"), nullptr);
  EXPECT_EQ(get_refit_tensor_dict(m), first);
}

// utils: "invalidate_refit_tensor_cache must be called whenever a persistent buffer is replaced so
// the cache picks up the new tensor"; "Drop the cached refit tensor dict so the next call rebuilds
// it."
TEST(Module, a_replaced_buffer_is_seen_after_invalidate_refit_tensor_cache) {
  Module m = small_model();
  const std::string name = "decoder.layers.0.mlp.router.expert_bias";
  const auto before = get_refit_tensor_dict(m);
  const auto fresh = std::make_shared<Tensor>(Tensor{view({4}, DType::f32)});
  ASSERT_TRUE(m.submodule("decoder.layers.0.mlp.router").replace_buffer("expert_bias", fresh));
  EXPECT_EQ(get_refit_tensor_dict(m), before);
  EXPECT_NE(*before->find(name), fresh);
  invalidate_refit_tensor_cache(m);
  EXPECT_NE(get_refit_tensor_dict(m), before);
  EXPECT_EQ(*get_refit_tensor_dict(m)->find(name), fresh);
}

TEST(Module, a_module_that_was_moved_knows_its_own_buffers) {
  auto first = std::make_unique<Module>();
  EXPECT_TRUE(first->register_buffer("bias", view({4})));
  EXPECT_EQ(get_refit_tensor_dict(*first)->buffers().front().parent, first.get());
  Module second = std::move(*first);
  first.reset();
  const auto tensors = get_refit_tensor_dict(second);
  ASSERT_EQ(tensors->buffers().size(), 1U);
  EXPECT_EQ(tensors->buffers().front().parent, &second);
  EXPECT_EQ(tensors->buffers().front().tensor(), second.buffer("bias"));
}

TEST(Module, members_need_names_of_their_own_and_memory_without_gaps) {
  Module m = small_model();
  EXPECT_FALSE(m.register_parameter("embedding", view({2})));
  EXPECT_FALSE(m.register_parameter("a.b", view({2})));
  EXPECT_FALSE(m.register_parameter("", view({2})));
  EXPECT_FALSE(m.register_parameter("gaps", *slice(view({4, 4}), Box{{0, 4}, {0, 2}})));
  TensorView none = view({2});
  none.data = nullptr;
  EXPECT_FALSE(m.register_parameter("none", none));
  EXPECT_FALSE(m.replace_buffer("missing", std::make_shared<Tensor>()));
  EXPECT_FALSE(m.add_child("null", nullptr));
}

TEST(Module, wrappers_are_taken_off) {
  Module ddp, half;
  ddp.is_wrapper = half.is_wrapper = true;
  auto core = std::make_shared<Module>();
  auto inner = std::make_shared<Module>();
  inner->is_wrapper = true;
  ASSERT_TRUE(inner->add_child("module", core));
  ASSERT_TRUE(ddp.add_child("module", inner));
  EXPECT_EQ(*unwrap_model(ddp), core.get());
  EXPECT_EQ(*unwrap_model(*core), core.get());
  EXPECT_FALSE(unwrap_model(half));
}

TEST(TensorView, slices_share_memory_and_know_their_gaps) {
  const TensorView whole = view({4, 6});
  const auto rows = slice(whole, *box_of({range(1, 3)}, whole.shape));
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->data, memory.data() + 12);
  EXPECT_TRUE(is_contiguous(*rows));
  const auto columns = slice(whole, *box_of({all(), index(2)}, whole.shape));
  ASSERT_TRUE(columns);
  EXPECT_EQ(columns->shape, (Dims{4, 1}));
  EXPECT_FALSE(is_contiguous(*columns));
  EXPECT_EQ(num_bytes(*columns), 8);
  EXPECT_FALSE(slice(whole, Box{{0, 5}, {0, 6}}));
  EXPECT_FALSE(box_of({range(0, 5)}, whole.shape));
  EXPECT_FALSE(box_of({range(3, 2)}, whole.shape));
  EXPECT_FALSE(box_of({all(), all(), all()}, whole.shape));
  EXPECT_FALSE(tensor_view(std::span(memory).first(10), DType::bf16, {4}));
}

TEST(TensorView, copies_go_between_slices_of_one_shape_and_dtype) {
  auto from = *make_tensor(DType::u8, {4, 6}), to = *make_tensor(DType::u8, {3, 3});
  for (int i = 0; i < 24; ++i) from.memory[static_cast<std::size_t>(i)] = static_cast<std::byte>(i);
  ASSERT_TRUE(copy(*slice(from.view, Box{{1, 4}, {2, 5}}), to.view));
  EXPECT_EQ(to.memory[0], std::byte{8});
  EXPECT_EQ(to.memory[8], std::byte{22});
  EXPECT_FALSE(copy(from.view, to.view));
  to.view.dtype = DType::i8;
  EXPECT_FALSE(copy(*slice(from.view, Box{{1, 4}, {2, 5}}), to.view));
}

}  // namespace
}  // namespace reshard::megatron
