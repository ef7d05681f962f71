// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/metadata.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "reshard/io/dcp/known_classes.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"
#include "reshard/io/files/utf8.h"

namespace reshard::dcp {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::Ref;
/// An entry's name and the offsets of its chunk; none for objects.
using Key = std::pair<std::string_view, std::vector<std::int64_t>>;

bool is_a(const Document& d, Ref r, std::string_view module, std::string_view name) {
  return d.made_by(r) == pickle::Name{module, name};
}

template <class... Args>
tl::unexpected<Error> not_metadata(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Code::corrupt, fmt::format(format, std::forward<Args>(args)...));
}

/// Reads what `.metadata` says.
class MetadataReader {
 public:
  explicit MetadataReader(const Document& document) : d_(document) {}

  Result<Metadata> read() {
    if (!is_a(d_, d_.root(), kMetadataModule, "Metadata"))
      return not_metadata("holds {}, must be a torch.distributed.checkpoint Metadata",
                          d_.describe(d_.root()));
    RESHARD_TRY(read_places());
    const Ref entries = RESHARD_TRY(attribute(d_.root(), "state_dict_metadata", "Metadata"));
    if (d_[entries].kind != Kind::dict)
      return not_metadata("state_dict_metadata is {}, must be a dict", d_.describe(entries));
    const auto items = d_.items(entries);
    for (std::size_t i = 0; i < items.size(); i += 2)
      RESHARD_TRY(read_entry(items[i], items[i + 1]));
    return std::move(out_);
  }

 private:
  Result<Ref> attribute(Ref object, std::string_view name, std::string_view what) const {
    if (const Ref* value = d_.attribute(object, name)) return *value;
    return not_metadata("a {} has no {}", what, name);
  }

  /// The numbers of a torch.Size, a tuple or a list.
  Result<std::vector<std::int64_t>> numbers(Ref r) const {
    Ref list = r;
    if (is_a(d_, r, "torch", "Size")) {
      const auto arguments = d_.items(d_.items(r)[1]);
      if (arguments.empty()) return std::vector<std::int64_t>{};
      list = arguments[0];
    }
    const auto* items = d_.sequence(list);
    if (items == nullptr) return not_metadata("{}, must be a torch.Size", d_.describe(r));
    if (items->size() > 64) return not_metadata("a torch.Size of {} dimensions", items->size());
    std::vector<std::int64_t> out;
    for (const Ref item : *items) {
      const auto* n = d_.integer(item);
      if (n == nullptr || d_[item].kind != Kind::integer || *n < 0)
        return not_metadata("a size must be whole numbers from 0, one is {}", d_.describe(item));
      out.push_back(*n);
    }
    return out;
  }

  Result<std::vector<std::int64_t>> sizes_of(Ref object, std::string_view name,
                                             std::string_view what) const {
    const Ref value = RESHARD_TRY(attribute(object, name, what));
    return numbers(value);
  }

  Result<> read_places() {
    const Ref places = RESHARD_TRY(attribute(d_.root(), "storage_data", "Metadata"));
    if (d_[places].kind != Kind::dict)
      return not_metadata("storage_data is {}, must be a dict", d_.describe(places));
    const auto items = d_.items(places);
    for (std::size_t i = 0; i < items.size(); i += 2)
      RESHARD_TRY(read_place(items[i], items[i + 1]));
    return {};
  }

  Result<> read_place(Ref index, Ref place) {
    if (!is_a(d_, index, kMetadataModule, "MetadataIndex"))
      return not_metadata("a key of storage_data is {}, must be a MetadataIndex",
                          d_.describe(index));
    const Ref name = RESHARD_TRY(attribute(index, "fqn", "MetadataIndex"));
    if (d_.text(name) == nullptr)
      return not_metadata("fqn of a MetadataIndex is {}, must be text", d_.describe(name));
    Key key{*d_.text(name), {}};
    const Ref* offset = d_.attribute(index, "offset");
    if (offset != nullptr && !d_.is_none(*offset)) key.second = RESHARD_TRY(numbers(*offset));
    auto item = read_item(place);
    if (!item) return tl::unexpected(std::move(item).error().in(in_quotes(key.first)));
    places_.insert_or_assign(std::move(key), *std::move(item));
    return {};
  }

  Result<std::int64_t> count(Ref object, std::string_view name) const {
    const Ref value = RESHARD_TRY(attribute(object, name, "_StorageInfo"));
    const auto* n = d_.integer(value);
    if (n == nullptr || d_[value].kind != Kind::integer || *n < 0)
      return not_metadata("{} of a _StorageInfo is {}, must be a whole number from 0", name,
                          d_.describe(value));
    return *n;
  }

  Result<Item> read_item(Ref place) const {
    if (!is_a(d_, place, kFilesystemModule, "_StorageInfo"))
      return not_metadata("its place is {}, must be a _StorageInfo", d_.describe(place));
    const Ref path = RESHARD_TRY(attribute(place, "relative_path", "_StorageInfo"));
    if (d_.text(path) == nullptr)
      return not_metadata("relative_path of a _StorageInfo is {}, must be text", d_.describe(path));
    RESHARD_TRY(files::check_file_name(*d_.text(path)));
    const Ref* transforms = d_.attribute(place, "transform_descriptors");
    if (transforms != nullptr && !d_.is_none(*transforms)) {
      const auto* list = d_.sequence(*transforms);
      if (list == nullptr || !list->empty())
        return fail(
            Code::unsupported,
            fmt::format("is transformed by {}; only plain items are read",
                        list == nullptr ? d_.describe(*transforms) : d_.describe(list->front())));
    }
    const auto offset = RESHARD_TRY(count(place, "offset"));
    const auto length = RESHARD_TRY(count(place, "length"));
    return Item{std::string(*d_.text(path)), offset, length};
  }

  Result<> read_entry(Ref name, Ref entry) {
    const auto* text = d_.text(name);
    if (text == nullptr)
      return not_metadata("a key of state_dict_metadata is {}", d_.describe(name));
    if (files::find_invalid_utf8(*text))
      return not_metadata("the name {} is not UTF-8", in_quotes(*text));
    auto read = is_a(d_, entry, kMetadataModule, "BytesStorageMetadata")
                    ? add_object(*text)
                    : read_tensor(*text, entry);
    if (!read) return tl::unexpected(std::move(read).error().in(in_quotes(*text)));
    return {};
  }

  Result<> add_object(std::string_view name) {
    const auto place = places_.find(Key{name, {}});
    if (place == places_.end()) return not_metadata("is in no file");
    out_.others.push_back({std::string(name), "", place->second});
    return {};
  }

  Result<> add_other(std::string_view name, std::string why) {
    out_.others.push_back({std::string(name), std::move(why), {}});
    return {};
  }

  Result<> read_tensor(std::string_view name, Ref entry) {
    if (!is_a(d_, entry, kMetadataModule, "TensorStorageMetadata"))
      return not_metadata("is {}, must be a TensorStorageMetadata", d_.describe(entry));
    const auto shape = RESHARD_TRY(sizes_of(entry, "size", "TensorStorageMetadata"));
    const std::string_view torch_name = RESHARD_TRY(dtype_name(entry));
    const auto dtype = dtype_from_torch_name(torch_name);
    if (!dtype) return add_other(name, fmt::format("of dtype {}", torch_name));
    if (bits(*dtype) < 8) return add_other(name, fmt::format("of dtype {}", torch_name));
    if (shape.size() > kMaxDims)
      return add_other(name, fmt::format("of {} dimensions", shape.size()));
    Tensor tensor{std::string(name), *dtype, Dims(std::span<const Index>(shape)), {}};
    const Ref list = RESHARD_TRY(attribute(entry, "chunks", "TensorStorageMetadata"));
    const auto* chunks = d_.sequence(list);
    if (chunks == nullptr) return not_metadata("chunks is {}, must be a list", d_.describe(list));
    for (const Ref chunk : *chunks) RESHARD_TRY(read_chunk(chunk, tensor));
    out_.tensors.push_back(std::move(tensor));
    return {};
  }

  /// TensorProperties pickles as a tuple that begins with the dtype; early versions of torch had a
  /// dict.
  Result<std::string_view> dtype_name(Ref entry) const {
    const Ref properties = RESHARD_TRY(attribute(entry, "properties", "TensorStorageMetadata"));
    if (is_a(d_, properties, kMetadataModule, "TensorProperties") &&
        d_.items(properties).size() == 3) {
      const Ref state = d_.items(properties)[2];
      const auto* tuple = d_.sequence(state);
      const Ref* dtype =
          tuple != nullptr && !tuple->empty() ? tuple->data() : d_.find(state, "dtype");
      if (dtype != nullptr && d_.global(*dtype).module == "torch") return d_.global(*dtype).name;
    }
    return not_metadata("its properties are {}, must be TensorProperties with a dtype",
                        d_.describe(properties));
  }

  Result<> read_chunk(Ref r, Tensor& tensor) const {
    if (!is_a(d_, r, kMetadataModule, "ChunkStorageMetadata"))
      return not_metadata("a chunk is {}, must be a ChunkStorageMetadata", d_.describe(r));
    const auto offsets = RESHARD_TRY(sizes_of(r, "offsets", "ChunkStorageMetadata"));
    const auto sizes = RESHARD_TRY(sizes_of(r, "sizes", "ChunkStorageMetadata"));
    bool inside = std::cmp_equal(offsets.size(), tensor.shape.size()) &&
                  std::cmp_equal(sizes.size(), tensor.shape.size());
    for (std::size_t i = 0; inside && i < sizes.size(); ++i) {
      const Index whole = tensor.shape[static_cast<int>(i)];
      inside = offsets[i] <= whole && sizes[i] <= whole - offsets[i];
    }
    if (!inside)
      return not_metadata("a chunk at [{}] of [{}] is not within its shape {}",
                          fmt::join(offsets, ", "), fmt::join(sizes, ", "),
                          to_string(tensor.shape));
    const auto place = places_.find(Key{tensor.name, offsets});
    if (place == places_.end())
      return not_metadata("its chunk at [{}] is in no file", fmt::join(offsets, ", "));
    tensor.chunks.push_back({Dims(std::span<const Index>(offsets)),
                             Dims(std::span<const Index>(sizes)), place->second});
    return {};
  }

  const Document& d_;
  std::map<Key, Item> places_;
  Metadata out_;
};

}  // namespace

Result<Metadata> parse_metadata(std::span<const std::byte> bytes) {
  const Document document = RESHARD_TRY(pickle::unpickle(
      bytes, pickle::Rules{.known = metadata_classes(), .enums = metadata_enums()}));
  return MetadataReader(document).read();
}

}  // namespace reshard::dcp
