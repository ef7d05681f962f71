// SPDX-License-Identifier: Apache-2.0
// Tensors that say where they are in a dict: numpy's __array_interface__ and CUDA's. The protocols
// do not tell how large the memory is, so all else is checked.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "python/src/tensors/gpus.h"
#include "python/src/tensors/looks.h"

namespace reshard::python {
namespace {

using dlpack::DataType;

constexpr auto kOpaque = static_cast<dlpack::Code>(3);

/// The dtype of a `typestr` of the array interface, such as "<f4".
DataType dtype_of_typestr(const std::string& text) {
  int bytes = 0;
  const char* const end = text.data() + text.size();
  const bool has_size =
      text.size() > 2 && std::from_chars(text.data() + 2, end, bytes).ptr == end && bytes > 0;
  if (!has_size || bytes > 16) throw Unseen{fmt::format("elements of type '{}'", text)};
  if (text[0] == '>' && bytes > 1) throw Unseen{"its elements are big-endian"};
  const char kind = text[1];
  const auto code = kind == 'b'   ? dlpack::Code::Bool
                    : kind == 'i' ? dlpack::Code::Int
                    : kind == 'u' ? dlpack::Code::UInt
                    : kind == 'f' ? dlpack::Code::Float
                    : kind == 'c' ? dlpack::Code::Complex
                    : kind == 'V' ? kOpaque
                                  : throw Unseen{fmt::format("elements of type '{}'", text)};
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bytes * 8), 1};
}

/// The fields of an array interface, numpy's or CUDA's.
class Interface {
 public:
  Interface(const char* name, nb::handle given) : name_(name) {
    if (!nb::isinstance<nb::dict>(given)) wrong("is no dict");
    fields_ = nb::borrow<nb::dict>(given);
  }

  /// None if it is missing.
  nb::object field(const char* name) const {
    PyObject* const found = PyDict_GetItemString(fields_.ptr(), name);
    return found == nullptr ? nb::none() : nb::borrow(found);
  }
  bool has(const char* name) const { return !field(name).is_none(); }
  template <class T>
  T wanted(const char* name, const char* what) const {
    T value{};
    if (!nb::try_cast(field(name), value))
      wrong(fmt::format("{} '{}', which is {}", has(name) ? "has a wrong" : "lacks", name, what));
    return value;
  }
  std::string typestr() const { return wanted<std::string>("typestr", "a type such as '<f4'"); }
  DataType dtype() const { return dtype_of_typestr(typestr()); }
  /// The tensor, whose elements are of this dtype. Its strides are in bytes, or missing.
  TensorView view(DataType dtype, dlpack::Device device) const {
    using Numbers = std::vector<Index>;
    const auto [address, read_only] =
        wanted<std::pair<std::uintptr_t, bool>>("data", "(address, read-only)");
    const auto sizes = wanted<Numbers>("shape", "a tuple of integers");
    Numbers steps;
    if (has("strides")) steps = wanted<Numbers>("strides", "a tuple of integers, or None");
    if (has("mask")) throw Unseen{"it has a mask"};
    if (sizes.size() > kMaxDims) too_many_dims(static_cast<int>(sizes.size()));
    if (has("strides") && steps.size() != sizes.size())
      throw Unseen{fmt::format("{} strides of {} dimensions", steps.size(), sizes.size())};
    std::array<Index, kMaxDims> shape{}, strides{};
    std::ranges::copy(sizes, shape.begin());
    // A stride that is no whole number of elements counts as a gap.
    for (std::size_t i = 0; i < steps.size(); ++i)
      strides[i] = steps[i] % (dtype.bits / 8) == 0 ? steps[i] / (dtype.bits / 8) : -1;
    TensorView view = view_of(dlpack::Tensor{.data = reinterpret_cast<void*>(address),
                                             .device = device,
                                             .ndim = static_cast<std::int32_t>(sizes.size()),
                                             .dtype = dtype,
                                             .shape = shape.data(),
                                             .strides = has("strides") ? strides.data() : nullptr});
    view.read_only = read_only;
    return view;
  }
  [[noreturn]] void wrong(const std::string& why) const {
    throw Unseen{fmt::format("its {} {}", name_, why)};
  }

 private:
  const char* name_;
  nb::dict fields_;
};

/// The GPU that has the memory; any will do for none.
int gpu_with(std::uintptr_t address) {
  if (address == 0) return 0;
  try {
    return gpu_of_address(reinterpret_cast<const void*>(address));
  } catch (const Raised& raised) {
    throw Unseen{raised.error().message};
  }
}

}  // namespace

std::optional<TensorView> look_by_interface(nb::handle object) {
  const nb::object given = attribute(object, "__array_interface__");
  const nb::object name = attribute(attribute(object, "dtype"), "name");
  if (!given.is_valid() || !name.is_valid()) return std::nullopt;
  std::string text = text_of(name);
  const std::optional<DType> dtype =
      text == "float8_e8m0fnu" ? DType::f8_e8m0 : dtype_from_torch_name(text);
  const std::optional<DataType> known = dtype ? dlpack_dtype(*dtype) : std::nullopt;
  if (!known || known->lanes != 1)
    throw Unseen{
        fmt::format("numpy's dtype {} is none of reshard's; it can be taken as its bits, in "
                    "unsigned integers of the same width (4-bit elements in pairs)",
                    text)};
  const Interface interface("__array_interface__", given);
  if (const int has = interface.dtype().bits; has != known->bits)
    interface.wrong(fmt::format("has elements of {} bits, and {} has {}", has, text, known->bits));
  return interface.view(*known, {dlpack::kCpu, 0});
}

std::optional<TensorView> look_by_cuda_interface(nb::handle object) {
  const nb::object found = attribute(object, "__cuda_array_interface__");
  if (!found.is_valid()) return std::nullopt;
  const Interface interface("__cuda_array_interface__", found);
  const DataType dtype = interface.dtype();
  if (dtype.code == static_cast<std::uint8_t>(kOpaque))
    throw Unseen{fmt::format("elements of type '{}'", interface.typestr())};
  TensorView view = interface.view(dtype, {dlpack::kCuda, 0});
  view.device.device_id = gpu_with(reinterpret_cast<std::uintptr_t>(view.data));
  if (interface.has("stream"))
    view.producer = interface.wanted<std::uint64_t>("stream", "the handle of a stream");
  return view;
}

}  // namespace reshard::python
