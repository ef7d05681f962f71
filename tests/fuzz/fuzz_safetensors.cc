// SPDX-License-Identifier: Apache-2.0
// Protects: a safetensors file is refused, or its tensors are within it, disjoint and complete, and
// writing their description gives a file that says the same.
#include <cstdint>
#include <cstring>
#include <set>
#include <string>

#include "reshard/base/check.h"
#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/checkpoint/safetensors_writer.h"

namespace {

using namespace reshard;

void check(std::span<const std::byte> file) {
  const auto header = parse_safetensors(file);
  if (!header) {
    RESHARD_CHECK(!header.error().message.empty() &&
                  header.error().message.find('\n') == std::string::npos);
    return;
  }
  std::int64_t end = header->data_offset;
  std::set<std::string> names;
  std::vector<TensorSpec> specs;
  for (const auto& tensor : header->tensors) {
    RESHARD_CHECK(tensor.offset == end &&
                  tensor.bytes == bytes_of(tensor.dtype, volume(tensor.shape)));
    RESHARD_CHECK(names.insert(tensor.name).second);
    end += tensor.bytes;
    specs.push_back(tensor);
  }
  RESHARD_CHECK(end == static_cast<std::int64_t>(file.size()));

  const auto plan = plan_safetensors(specs, header->metadata);
  RESHARD_CHECK(plan.has_value());
  std::string copy = plan->head;
  copy.resize(static_cast<std::size_t>(plan->file_bytes));
  const auto again = parse_safetensors(std::as_bytes(std::span(copy)));
  RESHARD_CHECK(again.has_value() && again->metadata == header->metadata);
  RESHARD_CHECK(again->tensors.size() == specs.size());
}

}  // namespace

/// Half of the inputs are whole files; of the others the fuzzer writes only the header's text and
/// the amount of data, so that it need not find the right length by chance.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2 || data[0] % 2 == 0) {
    check(std::as_bytes(std::span(data, size)).subspan(size > 0 ? 1 : 0));
    return 0;
  }
  const std::uint64_t length = size - 2;
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file.append(reinterpret_cast<const char*>(data) + 2, size - 2).append(data[1], '\0');
  check(std::as_bytes(std::span(file)));
  return 0;
}
