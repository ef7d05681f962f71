// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/io/open_model.h"

namespace reshard::identify {

/// The path of ModelOpt's file about a checkpoint whose config does not say how it is stored; empty
/// if there is none.
std::string config_beside(const Model& model);

/// Takes the scales of quantised weights out of `stored`, and notes how they are stored.
/// @param method the config's quant_method
/// @param values the dtype of the weights after dequantisation
Result<> take_scales(const std::string& method, DType values, ModelSpec& stored, Model& model);

/// The same for a checkpoint of a class that is not known, if the form of all its weights is: the
/// files and the config's quantisation section describe it whatever the class means. Else the model
/// stays as it is, and is moved so.
void take_scales_of_unknown_class(Model& model);

/// Takes the scales of activations out of `stored`.
std::vector<CanonicalTensor> take_activation_scales(ModelSpec& stored);

/// Takes what a checkpoint in ranks has of quantised tensors, by its layout, out of `stored`.
Result<> take_scales_of_ranks(ModelSpec& stored, Model& model);

}  // namespace reshard::identify
