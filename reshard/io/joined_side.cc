// SPDX-License-Identifier: Apache-2.0
// Layouts that a text joins by " + ".
#include <fmt/format.h>

#include "reshard/io/layout_side.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/place_layouts.h"

namespace reshard {

Result<> check_is_one(const std::string& text) {
  if (split_joined(text).size() == 1) return {};
  return fail(Code::invalid_argument,
              fmt::format("layout '{}' joins several; here one layout is possible", text));
}

Result<LayoutSide> make_side(const std::string& text, const Model& model,
                             const std::string& rules_folder, std::optional<BlockGrid> grid) {
  const std::vector<std::string> texts = split_joined(text);
  if (texts.size() == 1) return make_one_side(text, model, rules_folder, grid);
  LayoutSide out;
  std::vector<std::shared_ptr<const ModelLayout>> parts;
  for (const std::string& one : texts) {
    LayoutSide side = RESHARD_TRY(make_one_side(one, model, rules_folder, grid));
    if (side.quantised != nullptr || side.as_codes)
      return fail(
          Code::unsupported,
          fmt::format("layout '{}': '{}' is quantised, and only plain layouts can be joined; "
                      "give a session several targets instead",
                      text, one));
    parts.push_back(side.values);
    for (const std::string& note : side.notes) out.notes.push_back(note);
    out.by_card |= side.by_card;
    out.lacked.insert(side.lacked.begin(), side.lacked.end());
  }
  auto joined = join_layouts(parts);
  if (!joined)
    return tl::unexpected(std::move(joined).error().in(fmt::format("layout '{}'", text)));
  out.values = std::make_shared<const ModelLayout>(*std::move(joined));
  return out;
}

}  // namespace reshard
