// SPDX-License-Identifier: Apache-2.0
// Protects: a distributed checkpoint's metadata, the archive of a tensor, and a safetensors file of
// pieces are refused or say only what is within them; metadata reads back from what it is written
// as.
#include <cstdint>
#include <string>

#include "reshard/base/check.h"
#include "reshard/io/dcp/metadata.h"
#include "reshard/io/dcp/sharded_files.h"
#include "reshard/io/dcp/torch_item.h"
#include "reshard/io/files/disk.h"

namespace {

using namespace reshard;

template <class T>
void check_error(const Result<T>& result) {
  if (result) return;
  const auto& message = result.error().message;
  RESHARD_CHECK(!message.empty() && message.find('\n') == std::string::npos);
}

void check_metadata(const dcp::Metadata& metadata) {
  for (const dcp::Tensor& tensor : metadata.tensors)
    for (const dcp::Chunk& chunk : tensor.chunks) {
      RESHARD_CHECK(files::check_file_name(chunk.item.file).has_value());
      for (int i = 0; i < tensor.shape.size(); ++i)
        RESHARD_CHECK(chunk.offsets[i] + chunk.sizes[i] <= tensor.shape[i]);
    }
  const std::string bytes = dcp::metadata_bytes(metadata);
  const auto again = dcp::parse_metadata(std::as_bytes(std::span(bytes)));
  RESHARD_CHECK(again.has_value() && again->tensors.size() == metadata.tensors.size());
}

void check_shard(const SafetensorsHeader& header) {
  const auto offsets = dcp::saved_offsets(header);
  check_error(offsets);
  if (!offsets) return;
  RESHARD_CHECK(offsets->size() == header.tensors.size());
  for (std::size_t i = 0; i < offsets->size(); ++i) {
    const Dims &at = (*offsets)[i], &shape = header.tensors[i].shape;
    RESHARD_CHECK(at.size() == shape.size());
    for (int d = 0; d < at.size(); ++d) RESHARD_CHECK(at[d] >= 0 && at[d] + shape[d] >= at[d]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto metadata = dcp::parse_metadata(bytes);
  check_error(metadata);
  if (metadata) check_metadata(*metadata);
  const auto item = dcp::read_torch_item(bytes);
  check_error(item);
  if (item)
    RESHARD_CHECK(item->offset >= 0 && item->bytes >= 0 &&
                  item->offset + item->bytes <= static_cast<std::int64_t>(size));
  if (const auto header = parse_safetensors(bytes)) check_shard(*header);
  return 0;
}
