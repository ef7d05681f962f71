// SPDX-License-Identifier: Apache-2.0
// Encrypted frames over a non-blocking socket, one object for each direction.
//
// A direction is 24 bytes that start its cipher, and then chunks: 4 bytes of length, little-endian,
// and that many bytes of cipher text. A frame is one or more chunks; the last is tagged. Chunks are
// bounded, so that nothing is allocated for bytes that have not been authenticated but one chunk.
#pragma once

#include <sodium/crypto_secretstream_xchacha20poly1305.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "reshard/base/ring_queue.h"
#include "reshard/transport/tcp/cipher.h"
#include "reshard/transport/tcp/frame.h"

namespace reshard::tcp {

/// Most plain bytes of a chunk.
inline constexpr std::size_t kChunkBytes = 65536;

/// What became of reading from or writing to a socket.
enum class Flow {
  open,
  ended,  ///< closed by the other side, broken, or not what its sender must send.
};

/// Sends frames. One thread at a time.
class SecureWriter {
 public:
  explicit SecureWriter(const Key& key);
  /// Puts clear bytes in front of everything. @pre nothing was queued or flushed
  void begin_with(std::span<const std::byte> clear);
  /// No I/O. In memory of frames that are out. With `body` in place of frame.bytes, unless it is
  /// null.
  void queue(const Frame& frame, FrameBody body = nullptr);
  /// Sends what the socket takes without waiting.
  Flow flush(int socket);
  /// Everything is with the kernel.
  bool idle() const { return frames_.empty() && sent_ == cipher_.size(); }

 private:
  void encrypt_chunk();

  crypto_secretstream_xchacha20poly1305_state state_;
  std::vector<std::byte> cipher_;  ///< of chunks under way; [sent_, size) is unsent.
  std::size_t sent_ = 0;
  RingQueue<EncodedFrame> frames_;
  std::size_t encrypted_ = 0;                  ///< bytes of the first frame.
  std::vector<std::vector<std::byte>> spare_;  ///< of short frames that are out.
};

/// Receives frames. One thread at a time.
class SecureReader {
 public:
  explicit SecureReader(const Key& key) : key_(key) {}
  /// What happens to a frame, whose memory the next one is read into: it may be exchanged for
  /// another.
  using OnFrame = std::function<bool(Frame&)>;
  /// Reads what is there, a bounded amount, and calls `on_frame` for each whole frame. `ended` also
  /// when on_frame returned false. No frame may be longer than `max_bytes`.
  Flow read(int socket, std::size_t max_bytes, const OnFrame& on_frame);
  /// The same of bytes that were read elsewhere.
  Flow feed(std::span<const std::byte> bytes, std::size_t max_bytes, const OnFrame& on_frame);

 private:
  Flow decrypt_chunk(std::span<const std::byte> cipher, std::size_t max_bytes,
                     const OnFrame& on_frame);

  Key key_;
  crypto_secretstream_xchacha20poly1305_state state_;
  bool started_ = false;
  std::vector<std::byte> raw_;    ///< a chunk under way, at most.
  std::vector<std::byte> frame_;  ///< decrypted chunks of the frame under way.
  Frame parsed_;                  ///< the last whole one; its memory is used again.
};

}  // namespace reshard::tcp
