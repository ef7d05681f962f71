// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The example configs that come with the program. An example's name is its file name without
/// ".json".
namespace reshard {

/// The path of the example's config, or none. Searches the folder $RESHARD_EXAMPLES if that is set;
/// else ../share/reshard/configs beside the program and beside libreshard.so, configs/ beside a
/// Python extension, and then the source tree that they were built from.
std::optional<std::string> find_example(const std::string& name);

/// The names of all examples, sorted.
std::vector<std::string> example_names();

/// The example that a model's name comes closest to: the longest that the name begins with, as
/// "Llama-3.1-8B-Instruct" does with llama-3.1-8b, else closest_name().
std::optional<std::string> nearest_example(std::string_view name);

}  // namespace reshard
