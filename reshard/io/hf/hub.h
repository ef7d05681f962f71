// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

/// The local cache of the Hugging Face hub. Nothing is downloaded.
namespace reshard::hf {

/// True if the text may name a repository of the hub: "Qwen/Qwen3-8B". A path may look the same.
bool is_hub_id(std::string_view text);

/// The cache's folder, as huggingface_hub finds it: $HF_HUB_CACHE, else hub in $HF_HOME, else
/// huggingface/hub in $XDG_CACHE_HOME or ~/.cache.
std::string hub_cache();

/// The folder of a repository's snapshot in the cache: of the revision main or, if main is not
/// there, of the only revision that is. @pre is_hub_id(id)
std::optional<std::string> cached_snapshot(std::string_view id);

}  // namespace reshard::hf
