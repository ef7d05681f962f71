// SPDX-License-Identifier: Apache-2.0
// Protects: an index is refused, or names plain files only and reads back from the text it is
// written as.
#include <cstdint>
#include <string_view>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/index.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/resume_journal.h"

namespace {

using namespace reshard;

template <class T>
void check_error(const Result<T>& result) {
  if (result) return;
  const auto& message = result.error().message;
  RESHARD_CHECK(!message.empty() && message.find('\n') == std::string::npos &&
                message.size() < 2000);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto weight_map = parse_hf_index(text);
  check_error(weight_map);
  if (weight_map) {
    for (const auto& [name, file] : *weight_map)
      RESHARD_CHECK(files::check_file_name(file).has_value());
    RESHARD_CHECK(*parse_hf_index(hf_index_text(*weight_map, 0)) == *weight_map);
  }
  const auto ranks = parse_rank_index(text);
  check_error(ranks);
  if (ranks) {
    for (const auto& file : ranks->files) RESHARD_CHECK(files::check_file_name(file).has_value());
    RESHARD_CHECK(*parse_rank_index(rank_index_text(*ranks)) == *ranks);
  }
  check_error(parse_resume_record(text));
  return 0;
}
