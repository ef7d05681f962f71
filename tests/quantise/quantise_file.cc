// SPDX-License-Identifier: Apache-2.0
// Quantises a file of numbers and dequantises the result:
//   quantise_file FORMAT DTYPE ROWS COLS IN OUT
// IN has ROWS x COLS numbers of DTYPE (BF16, F16, F32). Writes OUT.data, OUT.scales, OUT.factor (a
// float, 0 where the format has none) and OUT.back, in DTYPE.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "reshard/transform/quantise.h"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

Result<Bytes> read_file(const std::string& path, std::size_t size) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return fail(Code::io, path + ": cannot be read");
  Bytes bytes(size + 1);
  const std::size_t got = std::fread(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  if (got != size) return fail(Code::corrupt, path + ": has another size than the matrix");
  bytes.resize(size);
  return bytes;
}

Result<> write_file(const std::string& path, const void* data, std::size_t size) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return fail(Code::io, path + ": cannot be written");
  const bool whole = std::fwrite(data, 1, size, file) == size;
  if (std::fclose(file) != 0 || !whole) return fail(Code::io, path + ": cannot be written");
  return {};
}

Result<> run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 6)
    return fail(Code::invalid_argument, "usage: quantise_file FORMAT DTYPE ROWS COLS IN OUT");
  const auto format = quant_format_from_name(arguments[0]);
  if (!format) {
    return fail(Code::invalid_argument,
                arguments[0] + " is no format; there are " + known_quant_formats());
  }
  const auto dtype = dtype_from_name(arguments[1]);
  if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32)
    return fail(Code::invalid_argument, arguments[1] + " is not BF16, F16 or F32");
  const Index rows = std::atoll(arguments[2].c_str()), cols = std::atoll(arguments[3].c_str());
  RESHARD_TRY(check_quant_format(*format, rows, cols));
  const Index row_bytes = cols * bits(*dtype) / 8;
  Bytes numbers = RESHARD_TRY(read_file(arguments[4], static_cast<std::size_t>(rows * row_bytes)));
  Bytes data(static_cast<std::size_t>(rows * cols * bits(format->data) / 8));
  Bytes scales(static_cast<std::size_t>(scale_bytes(*format, rows, cols)));
  float factor = 0;
  const FloatMatrix plain{numbers.data(), *dtype, rows, cols, row_bytes};
  const QuantMatrix small{.format = *format,
                          .data = data.data(),
                          .rows = rows,
                          .cols = cols,
                          .row_bytes = cols * bits(format->data) / 8,
                          .scales = scales.data(),
                          .scale_row_bytes = scale_cols(*format, cols) * bits(format->scale) / 8,
                          .factor = reinterpret_cast<std::byte*>(&factor)};
  quantise(plain, small);
  dequantise_rows(small, plain, 0, rows);
  const std::string& out = arguments[5];
  RESHARD_TRY(write_file(out + ".data", data.data(), data.size()));
  RESHARD_TRY(write_file(out + ".scales", scales.data(), scales.size()));
  RESHARD_TRY(write_file(out + ".factor", &factor, sizeof factor));
  return write_file(out + ".back", numbers.data(), numbers.size());
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  const auto done = reshard::run({argv + 1, argv + argc});
  if (done) return 0;
  std::fprintf(stderr, "quantise_file: %s\n", done.error().message.c_str());
  return 1;
}
