// SPDX-License-Identifier: Apache-2.0
// Protects: how memory lies, where stores go and who shares a matrix change no byte of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "reshard/base/hash.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/transform/quantise.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

constexpr const char* kNames[] = {"mxfp8",     "mxfp8_swizzled", "mxfp4",       "nvfp4",
                                  "fp8_block", "fp8_group_pow2", "fp8_channel", "fp8_tensor"};

/// Memory for one matrix in both forms, which begin `shift` bytes behind a multiple of 64.
class Memory {
 public:
  Memory(const QuantFormat& format, DType dtype, Index rows, Index cols, Index shift)
      : format_(format), dtype_(dtype), rows_(rows), cols_(cols), shift_(shift) {
    const Index sizes[] = {rows * cols * bits(dtype) / 8, rows * cols * bits(format.data) / 8,
                           scale_bytes(format, rows, cols), 4};
    for (int i = 0; i < 4; ++i) {
      parts_[i] = *HostBuffer::allocate(sizes[i] + shift);
      std::fill_n(parts_[i].data(), parts_[i].size(), std::byte{0x5a});
    }
  }

  FloatMatrix plain() {
    return {parts_[0].data() + shift_, dtype_, rows_, cols_, cols_ * bits(dtype_) / 8};
  }
  QuantMatrix small() {
    return {.format = format_,
            .data = parts_[1].data() + shift_,
            .rows = rows_,
            .cols = cols_,
            .row_bytes = cols_ * bits(format_.data) / 8,
            .scales = parts_[2].data() + shift_,
            .scale_row_bytes = scale_cols(format_, cols_) * bits(format_.scale) / 8,
            .factor = parts_[3].data() + shift_};
  }
  /// Numbers of all signs and some sizes, no NaN.
  void fill() {
    std::byte* const at = plain().data;
    for (Index i = 0; i < rows_ * cols_; ++i) {
      const auto word = static_cast<std::uint32_t>(mix64(static_cast<std::uint64_t>(i)));
      const std::uint32_t half = (word & 0x83ffU) | 0x3000U, wide = half << 16 | (word >> 16);
      if (dtype_ == DType::f32) std::memcpy(at + 4 * i, &wide, 4);
      if (dtype_ != DType::f32) std::memcpy(at + 2 * i, &half, 2);
    }
  }
  /// Everything but what lies before the shift.
  std::vector<std::byte> all() const {
    std::vector<std::byte> bytes;
    for (const HostBuffer& part : parts_)
      bytes.insert(bytes.end(), part.data() + shift_, part.data() + part.size());
    return bytes;
  }

 private:
  QuantFormat format_;
  DType dtype_;
  Index rows_, cols_, shift_;
  HostBuffer parts_[4];
};

/// Quantised, and dequantised over the source.
std::vector<std::byte> there_and_back(const QuantFormat& format, DType dtype, Index cols,
                                      Index shift, CopyHint hint) {
  Memory memory(format, dtype, 70, cols, shift);
  memory.fill();
  quantise(memory.plain(), memory.small(), hint);
  std::vector<std::byte> bytes = memory.all();
  dequantise_rows(memory.small(), memory.plain(), 0, 70, hint);
  const std::vector<std::byte> back = memory.all();
  bytes.insert(bytes.end(), back.begin(), back.end());
  return bytes;
}

TEST(QuantiseMemory, stores_past_the_caches_give_the_same_bytes_wherever_memory_begins) {
  for (const KernelChoice choice : kernel_choices()) {
    const KernelScope scope(choice);
    for (const char* name : kNames) {
      const QuantFormat format = *quant_format_from_name(name);
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        for (const Index cols : {512, 544, 48, 520}) {
          const auto want = there_and_back(format, dtype, cols, 0, CopyHint::cached);
          for (const Index shift : {0, 32, 16, 8, 4, 1})
            ASSERT_EQ(want, there_and_back(format, dtype, cols, shift, CopyHint::streaming))
                << name << " " << reshard::name(dtype) << " " << cols << " " << shift;
        }
      }
    }
  }
}

TEST(QuantiseMemory, blocks_that_are_no_vectors_are_stored_past_the_caches_too) {
  for (const Index block : {16, 24, 40, 48, 80, 96}) {
    for (const DType data : {DType::f8_e4m3, DType::f4}) {
      const QuantFormat format{.data = data, .block_cols = static_cast<std::int32_t>(block)};
      for (const KernelChoice choice : kernel_choices()) {
        const KernelScope scope(choice);
        for (const Index cols : {480, 496}) {
          EXPECT_EQ(there_and_back(format, DType::bf16, cols, 0, CopyHint::cached),
                    there_and_back(format, DType::bf16, cols, 0, CopyHint::streaming))
              << block;
        }
      }
    }
  }
}

TEST(QuantiseMemory, nothing_around_strided_rows_is_touched) {
  const QuantFormat format = *quant_format_from_name("mxfp8");
  Memory wide(format, DType::bf16, 64, 256, 0), narrow(format, DType::bf16, 64, 96, 0);
  wide.fill();
  QuantMatrix part = wide.small();
  FloatMatrix numbers = wide.plain();
  // Columns [64, 160) of a matrix that is wider.
  part.cols = numbers.cols = 96;
  part.data += 64;
  part.scales += 2;
  numbers.data += 128;
  std::vector<std::byte> before = wide.all();
  quantise(numbers, part);
  for (Index r = 0; r < 64; ++r)
    std::memcpy(narrow.plain().data + r * 192, numbers.data + r * 512, 192);
  quantise(narrow.plain(), narrow.small());
  std::size_t changed = 0;
  const std::vector<std::byte> after = wide.all();
  for (std::size_t i = 0; i < before.size(); ++i) changed += before[i] != after[i] ? 1U : 0U;
  EXPECT_LE(changed, 64U * (96 + 3));
  for (Index r = 0; r < 64; ++r) {
    EXPECT_EQ(std::memcmp(part.data + r * 256, narrow.small().data + r * 96, 96), 0);
    EXPECT_EQ(std::memcmp(part.scales + r * 8, narrow.small().scales + r * 3, 3), 0);
  }
}

TEST(QuantiseMemory, threads_share_a_matrix_by_rows) {
  for (const char* name : kNames) {
    const QuantFormat format = *quant_format_from_name(name);
    Memory whole(format, DType::bf16, 512, 160, 0), shared(format, DType::bf16, 512, 160, 0);
    whole.fill();
    shared.fill();
    const float largest = amax(whole.plain());
    quantise(whole.plain(), whole.small());
    const auto in_four = [&](auto work) {
      std::vector<std::jthread> threads;
      for (Index t = 0; t < 4; ++t) threads.emplace_back([&, t] { work(128 * t, 128 * (t + 1)); });
    };
    in_four([&](Index begin, Index end) {
      quantise_rows(shared.plain(), shared.small(), begin, end, largest);
    });
    EXPECT_EQ(whole.all(), shared.all()) << name;
    dequantise_rows(whole.small(), whole.plain(), 0, 512);
    in_four([&](Index begin, Index end) {
      dequantise_rows(shared.small(), shared.plain(), begin, end);
    });
    EXPECT_EQ(whole.all(), shared.all()) << name;
  }
}

}  // namespace
}  // namespace reshard
