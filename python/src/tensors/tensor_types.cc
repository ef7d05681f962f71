// SPDX-License-Identifier: Apache-2.0
// Dtypes and shapes of tensors, and their comparison with what a layout wants.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "python/src/tensors/tensors.h"

namespace reshard::python {
namespace {

using dlpack::DataType;
using DlCode = dlpack::Code;

constexpr std::uint8_t code(DlCode c) { return static_cast<std::uint8_t>(c); }

struct Row {
  DType dtype;
  DataType dlpack;
};

// DLPack has no integer code for `bool` of another width, and no complex but c64 here.
constexpr Row kRows[] = {
    {DType::boolean, {code(DlCode::Bool), 8, 1}},
    {DType::f4, {code(DlCode::Float4_E2M1FN), 4, 2}},
    {DType::f6_e2m3, {code(DlCode::Float6_E2M3FN), 6, 1}},
    {DType::f6_e3m2, {code(DlCode::Float6_E3M2FN), 6, 1}},
    {DType::u8, {code(DlCode::UInt), 8, 1}},
    {DType::i8, {code(DlCode::Int), 8, 1}},
    {DType::f8_e5m2, {code(DlCode::Float8_E5M2), 8, 1}},
    {DType::f8_e4m3, {code(DlCode::Float8_E4M3FN), 8, 1}},
    {DType::f8_e8m0, {code(DlCode::Float8_E8M0FNU), 8, 1}},
    {DType::f8_e4m3fnuz, {code(DlCode::Float8_E4M3FNUZ), 8, 1}},
    {DType::f8_e5m2fnuz, {code(DlCode::Float8_E5M2FNUZ), 8, 1}},
    {DType::i16, {code(DlCode::Int), 16, 1}},
    {DType::u16, {code(DlCode::UInt), 16, 1}},
    {DType::f16, {code(DlCode::Float), 16, 1}},
    {DType::bf16, {code(DlCode::Bfloat), 16, 1}},
    {DType::i32, {code(DlCode::Int), 32, 1}},
    {DType::u32, {code(DlCode::UInt), 32, 1}},
    {DType::f32, {code(DlCode::Float), 32, 1}},
    {DType::c64, {code(DlCode::Complex), 64, 1}},
    {DType::f64, {code(DlCode::Float), 64, 1}},
    {DType::i64, {code(DlCode::Int), 64, 1}},
    {DType::u64, {code(DlCode::UInt), 64, 1}},
    {DType::i4, {code(DlCode::UInt), 8, 1}},  // Two per byte: the dtype itself would be U8.
};

const char* code_name(std::uint8_t c) {
  constexpr const char* kNames[] = {"int",
                                    "uint",
                                    "float",
                                    "opaque",
                                    "bfloat",
                                    "complex",
                                    "bool",
                                    "float8_e3m4",
                                    "float8_e4m3",
                                    "float8_e4m3b11fnuz",
                                    "float8_e4m3fn",
                                    "float8_e4m3fnuz",
                                    "float8_e5m2",
                                    "float8_e5m2fnuz",
                                    "float8_e8m0fnu",
                                    "float6_e2m3fn",
                                    "float6_e3m2fn",
                                    "float4_e2m1fn"};
  return c < std::size(kNames) ? kNames[c] : "an unknown type";
}

const char* device_name(std::int32_t type) {
  switch (type) {
    case dlpack::kCuda: return "cuda";
    case 4: return "opencl";
    case 7: return "vulkan";
    case 8: return "metal";
    case 10: return "rocm";
    case 13: return "cuda managed memory";
    case 14: return "oneapi";
    case 17: return "maia";
    default: return "a device of another type";
  }
}

Dims halved(Dims shape) {
  if (shape.size() > 0) shape[shape.size() - 1] /= 2;
  return shape;
}

bool is_unsigned(DataType dtype, int width) {
  return dtype.code == code(DlCode::UInt) && dtype.bits == width && dtype.lanes == 1;
}

}  // namespace

std::optional<DataType> dlpack_dtype(DType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype && bits(dtype) != 6) return row.dlpack;
  return std::nullopt;
}

std::optional<DType> dtype_of_dlpack(DataType dtype) {
  for (const Row& row : kRows)
    if (row.dlpack.code == dtype.code && row.dlpack.bits == dtype.bits && dtype.lanes >= 1 &&
        dtype.lanes <= row.dlpack.lanes)
      return row.dtype;
  return std::nullopt;
}

std::string dtype_text(DataType dtype) {
  if (const auto known = dtype_of_dlpack(dtype)) return std::string(name(*known));
  std::string text = code_name(dtype.code);
  if (dtype.code <= code(DlCode::Complex)) text += std::to_string(dtype.bits);
  return dtype.lanes == 1 ? text : fmt::format("{} x {}", text, dtype.lanes);
}

std::string TensorName::text() const {
  return rank < 0 ? fmt::format("{}'{}'", side, name)
                  : fmt::format("rank {}: {}tensor '{}'", rank, side, name);
}

std::string shape_text(const Dims& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

bool TensorView::on_host() const {
  return device.device_type == dlpack::kCpu || device.device_type == dlpack::kCudaHost ||
         device.device_type == dlpack::kRocmHost;
}

bool TensorView::contiguous() const {
  Index step = 1;
  bool row_major = true;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    row_major &= shape[i] == 1 || strides[i] == step;
    if (__builtin_mul_overflow(step, shape[i], &step)) return false;
  }
  return row_major;
}

bool TensorView::same_as(const TensorView& other) const {
  return data == other.data && dtype == other.dtype &&
         device.device_type == other.device.device_type &&
         device.device_id == other.device.device_id && shape == other.shape &&
         strides == other.strides && read_only == other.read_only;
}

Index TensorView::bytes() const { return volume(shape) * dtype.bits * dtype.lanes / 8; }

std::string TensorView::place() const {
  if (on_host()) return "the host";
  return fmt::format("{}:{}", device_name(device.device_type), device.device_id);
}

void check_place(const TensorView& view, Memory memory, const TensorName& what) {
  if (view.on_host() || (memory == Memory::host_or_gpu && view.on_gpu())) return;
  raise(Code::unsupported,
        fmt::format("{}: is on {}; must be in the memory of the host{}", what.text(), view.place(),
                    memory == Memory::host_or_gpu ? " or of an NVIDIA GPU" : ""));
}

void check_tensor(const TensorView& view, const WantedTensor& wanted, const TensorName& what,
                  const std::string& whose, Memory memory) {
  check_place(view, memory, what);
  const int width = bits(wanted.dtype);
  const bool same = dtype_of_dlpack(view.dtype) == wanted.dtype;
  const bool raw = is_unsigned(view.dtype, std::max(width, 8)) && width != 6;
  const bool row_of_bytes =
      is_unsigned(view.dtype, 8) && view.shape.size() == 1 && view.shape[0] == wanted.bytes();
  if (!same && !raw && !row_of_bytes)
    raise(Code::invalid_argument, fmt::format("{}: dtype {}, but {} in {}", what.text(),
                                              dtype_text(view.dtype), name(wanted.dtype), whose));
  // Pairs of 4-bit elements count as one.
  const bool pairs = width == 4 && !(same && view.dtype.lanes == 1);
  const auto fits = [&](const Dims& shape) {
    return view.shape == (pairs ? halved(shape) : shape);
  };
  if (!row_of_bytes && !fits(wanted.stored) && !fits(wanted.shape))
    raise(Code::invalid_argument,
          fmt::format("{}: shape {}, but {} in {}", what.text(), shape_text(view.shape),
                      shape_text(pairs ? halved(wanted.stored) : wanted.stored), whose));
  if (!view.contiguous())
    raise(Code::invalid_argument,
          fmt::format("{}: strides {} of shape {}: not contiguous; pass the tensor whose memory is "
                      "row-major without gaps",
                      what.text(), shape_text(view.strides), shape_text(view.shape)));
  if (view.data == nullptr && wanted.bytes() > 0)
    raise(Code::invalid_argument,
          fmt::format("{}: has no memory (freed, or a fake tensor)", what.text()));
}

}  // namespace reshard::python
