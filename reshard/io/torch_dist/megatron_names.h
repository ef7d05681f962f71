// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/index/box.h"

/// How Megatron-Core's dist_checkpointing names the parameters of modules, which the layout
/// `megatron` of one rank names as Transformer Engine's modules do.
namespace reshard::torch_dist {

/// The place of a parameter in a checkpoint: a tensor, and the index in its leading dimensions.
struct StackedPlace {
  std::string tensor;
  Dims leading;
};

/// The names of a parameter, its own first: a norm is a module of its own or part of the matrix
/// that follows it, and Mamba's convolutions have two spellings.
std::vector<std::string> names_of(const std::string& parameter);

/// "decoder.layers.3.mlp.linear_fc1.weight" -> "decoder.layers.mlp.linear_fc1.weight", 3; none
/// without a layer of the decoder.
std::optional<StackedPlace> without_layer(const std::string& name);

/// "X.mlp.experts.linear_fc1.weight7" -> "X.mlp.experts.experts.linear_fc1.weight", 7; none if it
/// is no expert's.
std::optional<StackedPlace> without_expert(const std::string& name);

/// The places where a parameter can be: layers and experts stacked or not.
std::vector<StackedPlace> places_of(const std::string& parameter);

/// The ends of the names under which runs of a parameter's rows are stored: {".x", ".B", ".C"} for
/// Mamba's convolutions. Every way of cutting, the longest first.
std::span<const std::span<const std::string_view>> row_splits();

/// How the rows of a parameter of this name are always cut; none if it is stored whole.
std::span<const std::string_view> row_split_of(std::string_view parameter);

}  // namespace reshard::torch_dist
