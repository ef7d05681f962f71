// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The examples that come with the program: configs of models, clusters, and layout cards. The name
/// of an example is its file name without ".json".
namespace reshard {

/// The path of the example's config, or none. Searches the folder $RESHARD_EXAMPLES if that is set;
/// else ../share/reshard/configs beside the program and beside libreshard.so, configs/ beside a
/// Python extension, and then the source tree that they were built from.
std::optional<std::string> find_example(const std::string& name);

/// The path of the example cluster (cluster_file.h), or none. Searches clusters/ beside each folder
/// of configs.
std::optional<std::string> find_example_cluster(const std::string& name);

/// The path of a framework's card (card_file.h), or none. Searches cards/FRAMEWORK/ beside each
/// folder of configs.
std::optional<std::string> find_card_file(const std::string& framework, const std::string& name);

/// The names of a framework's cards, sorted.
std::vector<std::string> card_names(const std::string& framework);
/// The names of all configs, sorted.
std::vector<std::string> example_names();
/// The names of all clusters, sorted.
std::vector<std::string> example_cluster_names();

/// The example that a model's name comes closest to: the longest that the name begins with, as
/// "Llama-3.1-8B-Instruct" does with llama-3.1-8b, else closest_name().
std::optional<std::string> nearest_example(std::string_view name);

}  // namespace reshard
