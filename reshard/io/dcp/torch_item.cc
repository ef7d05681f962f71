// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/torch_item.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/dcp/known_classes.h"
#include "reshard/io/dcp/zip.h"
#include "reshard/io/files/json.h"

namespace reshard::dcp {
namespace {

constexpr std::string_view kPickleEntry = "/data.pkl";

tl::unexpected<Error> not_an_item(const std::string& message) {
  return fail(Code::corrupt, message);
}

std::string dotted_name(pickle::Name n) { return std::string(n.module).append(".").append(n.name); }

/// The element type of a storage class of torch's; none for UntypedStorage, whose elements are
/// bytes.
std::optional<DType> dtype_of_storage(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, DType>, 11> kTypes = {{
      {"BoolStorage", DType::boolean},
      {"ByteStorage", DType::u8},
      {"CharStorage", DType::i8},
      {"ShortStorage", DType::i16},
      {"IntStorage", DType::i32},
      {"LongStorage", DType::i64},
      {"HalfStorage", DType::f16},
      {"BFloat16Storage", DType::bf16},
      {"FloatStorage", DType::f32},
      {"DoubleStorage", DType::f64},
      {"ComplexFloatStorage", DType::c64},
  }};
  for (const auto& [storage, dtype] : kTypes)
    if (storage == name) return dtype;
  return std::nullopt;
}

/// The pickle's description of the tensor.
struct Description {
  DType dtype = DType::f32;
  std::string_view key;  ///< of the storage among the archive's entries.
  Index first = 0;       ///< element of the storage.
  Dims shape, strides;
};

class ItemReader {
 public:
  explicit ItemReader(const pickle::Document& document) : d_(document) {}

  Result<Description> read() const {
    pickle::Ref tensor = d_.root();
    if (d_.made_by(tensor) == pickle::Name{"torch._utils", "_rebuild_parameter"}) {
      const auto arguments = d_.items(d_.items(tensor)[1]);
      if (arguments.empty()) return not_an_item("a parameter without its tensor");
      tensor = arguments[0];
    }
    const bool typed = d_.made_by(tensor) == pickle::Name{"torch._utils", "_rebuild_tensor_v2"};
    const bool untyped = d_.made_by(tensor) == pickle::Name{"torch._utils", "_rebuild_tensor_v3"};
    if (!typed && !untyped)
      return not_an_item(fmt::format("holds {}, must be a tensor", d_.describe(d_.root())));
    const auto arguments = d_.items(d_.items(tensor)[1]);
    if (arguments.size() < (typed ? 4U : 7U))
      return not_an_item("a tensor without its description");
    Description out;
    out.shape = RESHARD_TRY(dims(arguments[2]));
    out.strides = RESHARD_TRY(dims(arguments[3]));
    if (out.shape.size() != out.strides.size()) return not_an_item("a shape without its strides");
    out.first = RESHARD_TRY(number(arguments[1]));
    RESHARD_TRY(read_storage(arguments[0], out));
    if (typed) return out;
    const auto dtype = dtype_from_torch_name(d_.global(arguments[6]).name);
    if (!dtype) return unknown_type(d_.describe(arguments[6]));
    out.dtype = *dtype;
    return out;
  }

 private:
  static tl::unexpected<Error> unknown_type(const std::string& what) {
    return fail(Code::unsupported, fmt::format("a tensor of {}", what));
  }

  Result<Index> number(pickle::Ref r) const {
    const auto* n = d_.integer(r);
    if (n == nullptr || d_[r].kind != pickle::Kind::integer || *n < 0)
      return not_an_item(fmt::format("{}, must be a whole number from 0", d_.describe(r)));
    return *n;
  }

  Result<Dims> dims(pickle::Ref r) const {
    if (d_.made_by(r) == pickle::Name{"torch", "Size"}) {
      const auto arguments = d_.items(d_.items(r)[1]);
      if (!arguments.empty()) r = arguments[0];
    }
    const auto* items = d_.sequence(r);
    if (items == nullptr || items->size() > kMaxDims)
      return not_an_item(
          fmt::format("{}, must be a tuple of at most {} numbers", d_.describe(r), kMaxDims));
    Dims out;
    for (const pickle::Ref item : *items) out.push_back(RESHARD_TRY(number(item)));
    return out;
  }

  /// A storage is the id ("storage", class, key, device, number of elements).
  Result<> read_storage(pickle::Ref r, Description& out) const {
    const auto* id = d_[r].kind == pickle::Kind::persistent ? d_.sequence(d_.items(r)[0]) : nullptr;
    if (id == nullptr || id->size() < 5 || d_.text((*id)[2]) == nullptr)
      return not_an_item(fmt::format("a storage that is {}", d_.describe(r)));
    out.key = *d_.text((*id)[2]);
    const pickle::Name type = d_.global((*id)[1]);
    if (const auto dtype = dtype_of_storage(type.name)) {
      out.dtype = *dtype;
    } else if (type != pickle::Name{"torch.storage", "UntypedStorage"}) {
      return unknown_type(dotted_name(type));
    }
    return {};
  }

  const pickle::Document& d_;
};

/// The dimensions from the outermost in memory, if the elements are dense there. Dimensions of one
/// element stay where they are: their strides mean nothing.
std::optional<Dims> memory_order(const Dims& shape, const Dims& strides) {
  std::vector<int> wide;
  for (int i = 0; i < shape.size(); ++i)
    if (shape[i] > 1) wide.push_back(i);
  std::stable_sort(wide.begin(), wide.end(), [&](int a, int b) { return strides[a] > strides[b]; });
  Index step = 1;
  for (std::size_t i = wide.size(); i > 0; --i) {
    if (strides[wide[i - 1]] != step) return std::nullopt;
    if (__builtin_mul_overflow(step, shape[wide[i - 1]], &step)) return std::nullopt;
  }
  Dims out = Dims::filled(shape.size(), 0);
  std::size_t next = 0;
  for (int i = 0; i < shape.size(); ++i) out[i] = shape[i] > 1 ? wide[next++] : i;
  return out;
}

/// Bytes of the elements, or none if they overflow.
std::optional<Index> bytes_of_item(DType dtype, const Dims& shape) {
  Index elements = 1;
  for (const Index n : shape)
    if (__builtin_mul_overflow(elements, n, &elements)) return std::nullopt;
  return bytes_of(dtype, elements);
}

}  // namespace

Result<StoredItem> read_torch_item(std::span<const std::byte> archive) {
  const ZipEntries entries = RESHARD_TRY(zip_entries(archive));
  const auto is_pickle = [](const auto& entry) { return entry.first.ends_with(kPickleEntry); };
  const auto pickled = std::find_if(entries.begin(), entries.end(), is_pickle);
  if (pickled == entries.end()) return not_an_item("the archive has no data.pkl");
  if (std::any_of(std::next(pickled), entries.end(), is_pickle))
    return not_an_item("the archive has two data.pkl");
  const std::string folder(pickled->first.substr(0, pickled->first.size() - kPickleEntry.size()));
  if (const auto order = entries.find(folder + "/byteorder"); order != entries.end()) {
    const std::string_view text(reinterpret_cast<const char*>(order->second.data()),
                                order->second.size());
    if (text != "little")
      return fail(Code::unsupported, fmt::format("a tensor of byte order {}", in_quotes(text)));
  }
  const pickle::Document document =
      RESHARD_TRY(pickle::unpickle(pickled->second, pickle::Rules{.known = tensor_classes(),
                                                                  .persistent = true,
                                                                  .values = std::size_t{1} << 16}));
  const Description tensor = RESHARD_TRY(ItemReader(document).read());
  StoredItem item{tensor.dtype, tensor.shape, tensor.shape, 0, 0};
  const auto bytes = bytes_of_item(tensor.dtype, tensor.shape);
  const auto before = bytes_of(tensor.dtype, tensor.first);
  const auto order = memory_order(tensor.shape, tensor.strides);
  if (!bytes || !before) return not_an_item("a tensor of more bytes than 64 bits can count");
  if (*bytes > 0 && !order)
    return fail(Code::unsupported,
                fmt::format("a tensor of shape {} with strides {}, which is not dense in memory",
                            to_string(tensor.shape), to_string(tensor.strides)));
  for (int i = 0; i < item.shape.size(); ++i) item.order[i] = *bytes > 0 ? (*order)[i] : i;
  const auto storage = entries.find(folder + "/data/" + std::string(tensor.key));
  if (storage == entries.end()) return not_an_item("the archive has no storage of its tensor");
  const auto held = static_cast<Index>(storage->second.size());
  if (*bytes > 0 && (*before > held || *bytes > held - *before))
    return not_an_item(fmt::format("a tensor of {} bytes in a storage of {}", *bytes, held));
  item.bytes = *bytes;
  if (*bytes > 0) item.offset = storage->second.data() - archive.data() + *before;
  return item;
}

}  // namespace reshard::dcp
