// SPDX-License-Identifier: Apache-2.0
// Encrypted frames over a non-blocking socket, one object for each direction.
//
// Each direction starts with the 24-byte header of its cipher, followed by chunks: a length (4
// bytes, little-endian) and that many bytes of cipher text. A frame is one or more chunks, of which
// the last is tagged. Chunks are bounded, so that at most one chunk is allocated for
// unauthenticated bytes.
#pragma once

#include <sodium/crypto_secretstream_xchacha20poly1305.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "reshard/base/containers/ring_queue.h"
#include "reshard/transport/tcp/cipher.h"
#include "reshard/transport/tcp/frame.h"

namespace reshard::tcp {

/// Most bytes of plain text in a chunk.
inline constexpr std::size_t kChunkBytes = 65536;

/// The state of a connection after a read or write.
enum class Flow {
  open,
  ended,  ///< closed by the peer, broken, or the peer violated the protocol.
};

/// Sends frames. One thread at a time.
class SecureWriter {
 public:
  explicit SecureWriter(const Key& key);
  /// Sends unencrypted bytes first. @pre nothing was queued or flushed
  void begin_with(std::span<const std::byte> clear);
  /// Queues a frame, with `body` in place of frame.bytes unless it is null. No I/O.
  void queue(const Frame& frame, FrameBody body = nullptr);
  /// Sends as much as the socket accepts without waiting.
  Flow flush(int socket);
  /// True if everything has been passed to the kernel.
  bool idle() const { return frames_.empty() && sent_ == cipher_.size(); }

 private:
  void encrypt_chunk();

  crypto_secretstream_xchacha20poly1305_state state_;
  std::vector<std::byte> cipher_;  ///< chunks in flight; [sent_, size) is not sent yet.
  std::size_t sent_ = 0;
  RingQueue<EncodedFrame> frames_;
  std::size_t encrypted_ = 0;                  ///< bytes of the first frame.
  std::vector<std::vector<std::byte>> spare_;  ///< memory of short frames that were sent.
};

/// Receives frames. One thread at a time.
class SecureReader {
 public:
  explicit SecureReader(const Key& key) : key_(key) {}
  /// Handles a frame; false ends the connection. The next frame reuses its memory, which the
  /// handler may swap for other memory.
  using OnFrame = std::function<bool(Frame&)>;
  /// Reads a bounded number of available bytes and calls `on_frame` for each complete frame.
  /// `ended` also if on_frame returned false or a frame is longer than `max_bytes`.
  Flow read(int socket, std::size_t max_bytes, const OnFrame& on_frame);
  /// The same for bytes that the caller has read.
  Flow feed(std::span<const std::byte> bytes, std::size_t max_bytes, const OnFrame& on_frame);

 private:
  Flow decrypt_chunk(std::span<const std::byte> cipher, std::size_t max_bytes,
                     const OnFrame& on_frame);

  Key key_;
  crypto_secretstream_xchacha20poly1305_state state_;
  bool started_ = false;
  std::vector<std::byte> raw_;    ///< at most one incomplete chunk.
  std::vector<std::byte> frame_;  ///< the decrypted chunks of an incomplete frame.
  Frame parsed_;                  ///< the last complete frame; its memory is reused.
};

}  // namespace reshard::tcp
