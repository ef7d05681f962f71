// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/known_classes.h"
#include "reshard/io/dcp/metadata.h"
#include "reshard/io/pickle/writer.h"

namespace reshard::dcp {
namespace {

constexpr pickle::Name metadata_class(std::string_view name) { return {kMetadataModule, name}; }

void write_size(pickle::Writer& w, const Dims& dims) {
  w.begin_call({"torch", "Size"});
  w.begin_tuple();
  w.begin_tuple();
  for (const Index n : dims) w.integer(n);
  w.end_tuple();
  w.end_tuple();
  w.end_call();
}

/// dtype, layout, requires_grad, memory format, pin_memory.
void write_properties(pickle::Writer& w, DType dtype) {
  w.begin_object(metadata_class("TensorProperties"));
  w.begin_tuple();
  w.global({"torch", torch_name(dtype)});
  w.begin_call({"torch.serialization", "_get_layout"});
  w.begin_tuple();
  w.text("torch.strided");
  w.end_tuple();
  w.end_call();
  w.boolean(false);
  w.begin_call(metadata_class("_MEM_FORMAT_ENCODING"));
  w.begin_tuple();
  w.integer(0);
  w.end_tuple();
  w.end_call();
  w.boolean(false);
  w.end_tuple();
  w.end_object();
}

void write_tensor(pickle::Writer& w, const Tensor& tensor) {
  w.begin_object(metadata_class("TensorStorageMetadata"));
  w.begin_dict();
  w.text("properties");
  write_properties(w, tensor.dtype);
  w.text("size");
  write_size(w, tensor.shape);
  w.text("chunks");
  w.begin_list();
  for (const Chunk& chunk : tensor.chunks) {
    w.begin_object(metadata_class("ChunkStorageMetadata"));
    w.begin_dict();
    w.text("offsets");
    write_size(w, chunk.offsets);
    w.text("sizes");
    write_size(w, chunk.sizes);
    w.end_dict();
    w.end_object();
  }
  w.end_list();
  w.end_dict();
  w.end_object();
}

/// One entry of storage_data. `chunk`: the number of the chunk, and its offsets; none for objects.
void write_place(pickle::Writer& w, const std::string& name, const Chunk* chunk, Index number,
                 const Item& item) {
  w.begin_object(metadata_class("MetadataIndex"));
  w.begin_dict();
  w.text("fqn");
  w.text(name);
  w.text("index");
  if (chunk == nullptr) {
    w.none();
  } else {
    w.integer(number);
    w.text("offset");
    write_size(w, chunk->offsets);
  }
  w.end_dict();
  w.end_object();
  w.begin_object({kFilesystemModule, "_StorageInfo"});
  w.begin_dict();
  w.text("relative_path");
  w.text(item.file);
  w.text("offset");
  w.integer(item.offset);
  w.text("length");
  w.integer(item.bytes);
  w.end_dict();
  w.end_object();
}

void write_places(pickle::Writer& w, const Metadata& metadata) {
  w.begin_dict();
  for (const Tensor& tensor : metadata.tensors) {
    Index number = 0;
    for (const Chunk& chunk : tensor.chunks)
      write_place(w, tensor.name, &chunk, number++, chunk.item);
  }
  for (const Other& other : metadata.others)
    if (other.why.empty()) write_place(w, other.name, nullptr, 0, other.item);
  w.end_dict();
}

/// The path of each entry in the state dict: one level.
void write_paths(pickle::Writer& w, const Metadata& metadata) {
  const auto path = [&](const std::string& name) {
    w.text(name);
    w.begin_tuple();
    w.text(name);
    w.end_tuple();
  };
  w.begin_dict();
  for (const Tensor& tensor : metadata.tensors) path(tensor.name);
  for (const Other& other : metadata.others)
    if (other.why.empty()) path(other.name);
  w.end_dict();
}

}  // namespace

std::string metadata_bytes(const Metadata& metadata) {
  pickle::Writer w;
  w.begin_object(metadata_class("Metadata"));
  w.begin_dict();
  w.text("state_dict_metadata");
  w.begin_dict();
  for (const Tensor& tensor : metadata.tensors) {
    w.text(tensor.name);
    write_tensor(w, tensor);
  }
  for (const Other& other : metadata.others) {
    if (!other.why.empty()) continue;
    w.text(other.name);
    w.begin_object(metadata_class("BytesStorageMetadata"));
  }
  w.end_dict();
  w.text("planner_data");
  write_paths(w, metadata);
  w.text("storage_data");
  write_places(w, metadata);
  w.text("storage_meta");
  w.none();
  w.text("version");
  w.text("1.0.0");
  w.end_dict();
  w.end_object();
  return std::move(w).finish();
}

}  // namespace reshard::dcp
