// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "reshard/cuda/stream.h"

namespace reshard::nvshmem {

/// A stream, and how much of its work is done. Work is counted by whoever gives it.
class Lane {
 public:
  static Result<Lane> make(const std::shared_ptr<const cuda::Device>& device) {
    cuda::Stream stream = RESHARD_TRY(cuda::Stream::make(device));
    cuda::Event mark = RESHARD_TRY(cuda::Event::make(device));
    return Lane(std::move(stream), std::move(mark));
  }

  const cuda::Stream& stream() const { return stream_; }
  const cuda::Event& mark() const { return mark_; }

  /// Notes that the stream has got work. Returns its number: 1, 2, ...
  std::uint64_t note() { return ++given_; }
  /// Finds out what is done; waits for nothing. One mark travels in the stream at a time, so that
  /// steady work does not hide what is done already. Errors: of the work.
  Result<> look() {
    if (marked_ > done_ && RESHARD_TRY(mark_.is_done())) done_ = marked_;
    if (marked_ == done_ && given_ > marked_) {
      RESHARD_TRY(mark_.record(stream_));
      marked_ = given_;
    }
    return {};
  }
  /// As of the last look().
  bool is_done(std::uint64_t number) const { return done_ >= number; }
  bool is_idle() const { return done_ == given_; }

 private:
  Lane(cuda::Stream stream, cuda::Event mark)
      : stream_(std::move(stream)), mark_(std::move(mark)) {}

  cuda::Stream stream_;
  cuda::Event mark_;
  std::uint64_t given_ = 0, marked_ = 0, done_ = 0;
};

}  // namespace reshard::nvshmem
