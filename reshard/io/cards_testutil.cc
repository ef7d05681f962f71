// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/cards_testutil.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>

#include "reshard/base/check.h"
#include "reshard/io/card_file.h"
#include "reshard/io/hf/architectures.h"

namespace reshard {

const RuleSet& card_of(const std::string& framework, const ModelConfig& config) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, RuleSet> known;
  const std::scoped_lock lock(mutex);
  const auto key = std::pair(framework, config.model_type);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const auto of = std::ranges::find_if(hf::architectures(), [&](const hf::Architecture& a) {
    return std::ranges::find(a.model_types, config.model_type) != a.model_types.end();
  });
  RESHARD_CHECK(of != hf::architectures().end());
  auto card = read_card_of(framework, std::string(of->name));
  if (!card) std::fprintf(stderr, "%s\n", card.error().message.c_str());
  RESHARD_CHECK(card.has_value());
  return known.emplace(key, *std::move(card)).first->second;
}

}  // namespace reshard
