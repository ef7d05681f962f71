// SPDX-License-Identifier: Apache-2.0
// Protects: a layout file is refused, or makes a layout with valid shard maps whose file reads back
// as the same text.
#include <cstdint>
#include <string_view>

#include "reshard/base/check.h"
#include "reshard/io/layout_file.h"
#include "reshard/model/families.h"

namespace {

using namespace reshard;

/// Bounds the time of check_shard_map(), which is written for layouts of families.
constexpr std::size_t kMaxChecked = 64;

void check_error(const Error& error) {
  RESHARD_CHECK(!error.message.empty() && error.message.find('\n') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = parse_layout_file({reinterpret_cast<const char*>(data), size});
  if (!file) return check_error(file.error()), 0;
  const std::string text = layout_file_text(*file);
  const auto again = parse_layout_file(text);
  RESHARD_CHECK(again.has_value() && layout_file_text(*again) == text);
  const auto layout = explicit_layout({"explicit", "", {}}, {file->tensors}, *file);
  if (!layout) return check_error(layout.error()), 0;
  std::size_t parts = 0;
  bool small = true;
  for (const auto& local : file->locals) {
    parts += local.tensor.parts.size();
    for (const PlacedBox& p : local.tensor.parts)
      for (int i = 0; i < p.box.rank(); ++i) small &= p.step(i) == 1 || p.box[i].size() <= 16;
  }
  const std::vector<Rank> ranks = layout->ranks().members();
  if (small && parts <= kMaxChecked && !ranks.empty())
    RESHARD_CHECK(check_shard_map(*layout, ranks.front()).has_value());
  return 0;
}
