// SPDX-License-Identifier: Apache-2.0
// Protects: a rules file or layout card is refused, or makes a layout with valid shard maps of a
// small model, whose config has numbers that its expressions may use.
#include <cstdint>
#include <memory>
#include <string_view>

#include "reshard/base/check.h"
#include "reshard/io/rules_file.h"
#include "reshard/model/config_values.h"
#include "reshard/model/families.h"

namespace {

using namespace reshard;

void check_error(const Error& error) {
  RESHARD_CHECK(!error.message.empty() && error.message.find('\n') == std::string::npos);
}

std::shared_ptr<const ModelSpec> small_model() {
  auto model = std::make_shared<ModelSpec>();
  const auto add = [&](const char* name, Dims shape) {
    RESHARD_CHECK(model->add(name, shape, DType::bf16).has_value());
  };
  add("embed.weight", {10, 4});
  add("layers.0.q.weight", {8, 4});
  add("layers.0.k.weight", {4, 4});
  add("layers.1.experts.0.up.weight", {6, 4});
  add("layers.1.experts.1.up.weight", {6, 4});
  add("layers.1.conv", {4, 1, 2});
  add("scale", {});
  return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto model = small_model();
  const auto rules = parse_rules({reinterpret_cast<const char*>(data), size});
  if (!rules) return check_error(rules.error()), 0;
  // Larger meshes only take longer.
  Index ranks = 1;
  for (const Axis& axis : rules->axes) ranks = axis.size > 64 ? 65 : ranks * axis.size;
  if (ranks > 64) return 0;
  ConfigValues values;
  values.numbers = {{"heads", 4}, {"head_dim", 2}, {"layers", 2}, {"zero", 0}};
  FamilyInput input{model};
  input.values = &values;
  const auto layout = rules_layout({"rules", "fuzzed", {}}, input, *rules);
  if (!layout) return check_error(layout.error()), 0;
  layout->ranks().for_each([&](Rank r) { RESHARD_CHECK(check_shard_map(*layout, r).has_value()); });
  return 0;
}
