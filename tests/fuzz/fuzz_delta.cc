// SPDX-License-Identifier: Apache-2.0
// Protects: a delta's file is refused with one error in one line, or its index serialises to the
// same bytes and its codes lie in the file; and a code is refused, or changes nothing outside its
// block.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/base/hash.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/delta/delta_file.h"
#include "reshard/transform/delta/delta_code.h"

namespace {

using namespace reshard;
using Bytes = std::span<const std::byte>;

void check_error(const Error& error) {
  RESHARD_CHECK(!error.message.empty() && error.message.find('\n') == error.message.npos);
}

void check_file(Bytes file) {
  const auto delta = parse_delta(file);
  if (!delta) return check_error(delta.error());
  for (const DeltaPart& part : delta->index.parts)
    for (const DeltaBlock& block : part.blocks)
      RESHARD_CHECK(block.bytes == 0 ||
                    (block.at > 0 && block.at + block.bytes <= static_cast<Index>(file.size())));
}

/// A file around an index, so that the fuzzer need not find its hash by chance.
void check_index(Bytes bytes) {
  auto index = parse_delta_index(bytes);
  if (!index) return check_error(index.error());
  RESHARD_CHECK(std::ranges::equal(serialise(*index), bytes));
  const DeltaLink link{base_fingerprint(*index), result_fingerprint(*index),
                       base_fingerprint(*index), 1};
  std::vector<TensorSpec> tensors{
      {std::string(kDeltaIndexName), DType::u8, Dims{static_cast<Index>(bytes.size())}}};
  Index codes = 0;
  for (const DeltaPart& part : index->parts)
    if (const Index size = part.code_bytes(); size > 0) {
      tensors.push_back({delta_tensor_name(part), DType::u8, Dims{size}});
      codes += size;
    }
  const auto plan = plan_safetensors(tensors, delta_metadata(link, bytes));
  if (!plan || codes > (Index{1} << 22)) return;
  std::string file = plan->head;
  file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  file.resize(static_cast<std::size_t>(plan->file_bytes));
  const auto read = parse_delta(std::as_bytes(std::span(file)));
  if (!read) return check_error(read.error());
  RESHARD_CHECK(std::ranges::equal(serialise(read->index), bytes));
}

void check_code(Bytes bytes) {
  if (bytes.size() < 2) return;
  const int width = 1 << (std::to_integer<int>(bytes[0]) % 4);
  std::vector<std::byte> block(static_cast<std::size_t>(width) *
                               std::to_integer<std::size_t>(bytes[1]));
  const auto applied = apply_delta_code(bytes.subspan(2), width, block);
  if (!applied) check_error(applied.error());
}

}  // namespace

/// The first byte says which of the three an input is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 3) {
    case 0: check_file(bytes); break;
    case 1: check_index(bytes); break;
    default: check_code(bytes); break;
  }
  return 0;
}
