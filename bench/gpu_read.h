// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"

namespace reshard::bench {

/// A kernel that reads memory once and adds up its words: how fast a GPU's memory can be read.
class PlainRead {
 public:
  /// Errors: the driver's, also where it cannot compile PTX (the emulated GPU).
  static Result<PlainRead> make(const cuda::Driver& driver, int gpu);

  /// Gives the stream the work for a number of bytes, a multiple of 16, at an address that is one,
  /// too.
  Result<> launch(const cuda::Stream& stream, const std::byte* from, Index bytes) const;
  /// Errors: the last launch did not read what `host` has. Waits.
  Result<> check(const cuda::Stream& stream, const std::byte* host, Index bytes) const;

 private:
  std::shared_ptr<const cuda::Device> device_;
  cuda::Function kernel_ = nullptr;
  cuda::Buffer sum_;
};

}  // namespace reshard::bench
