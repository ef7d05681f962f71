// SPDX-License-Identifier: Apache-2.0
#include "cli/json_report.h"

#include <fmt/format.h>

namespace reshard::cli {

std::string json_report(std::string_view command, Json::Object members) {
  members.insert(members.begin(), {"schema", Json(fmt::format("reshard.{}/1", command))});
  return Json(std::move(members)).dump(true) + "\n";
}

Json json_list(const std::vector<std::string>& texts) {
  Json::Array list;
  for (const std::string& text : texts) list.emplace_back(text);
  return Json(std::move(list));
}

std::string_view version_text() { return RESHARD_VERSION; }

}  // namespace reshard::cli
