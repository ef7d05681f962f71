// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace reshard::tcp {
namespace {

constexpr std::size_t kTagBytes = crypto_secretstream_xchacha20poly1305_ABYTES;
constexpr std::size_t kStartBytes = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
constexpr std::size_t kLengthBytes = 4;
/// Memory of sent frames that is kept for reuse: how many frames, and the longest. Bytes.
constexpr std::size_t kSpareFrames = 4, kMaxSpare = 4096;
/// Most memory of a received frame that is kept for the next one. Bytes.
constexpr std::size_t kMaxKept = std::size_t{2} << 20;
constexpr unsigned char kMore = 0;
constexpr unsigned char kLast = crypto_secretstream_xchacha20poly1305_TAG_PUSH;

/// Copies bytes [at, at + out.size()) of a frame.
void copy_out(const EncodedFrame& frame, std::size_t at, std::span<std::byte> out) {
  std::size_t done = 0;
  if (at < frame.head.size()) {
    done = std::min(out.size(), frame.head.size() - at);
    std::copy_n(frame.head.data() + at, done, out.data());
  }
  if (done < out.size()) {
    const std::size_t from = at + done - frame.head.size();
    std::copy_n(frame.body->data() + from, out.size() - done, out.data() + done);
  }
}

bool retriable(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

SecureWriter::SecureWriter(const Key& key) : cipher_(kStartBytes) {
  spare_.reserve(kSpareFrames);
  crypto_secretstream_xchacha20poly1305_init_push(&state_, raw(cipher_.data()), raw(key.data()));
}

void SecureWriter::begin_with(std::span<const std::byte> clear) {
  cipher_.insert(cipher_.begin(), clear.begin(), clear.end());
}

void SecureWriter::queue(const Frame& frame, FrameBody body) {
  std::vector<std::byte> room;
  if (!spare_.empty()) {
    room = std::move(spare_.back());
    spare_.pop_back();
  }
  frames_.push_back(encode(frame, std::move(body), std::move(room)));
}

void SecureWriter::encrypt_chunk() {
  const EncodedFrame& frame = frames_.front();
  std::array<std::byte, kChunkBytes> plain;
  const std::size_t bytes = std::min(kChunkBytes, frame.size() - encrypted_);
  copy_out(frame, encrypted_, std::span(plain).first(bytes));
  encrypted_ += bytes;
  const bool last = encrypted_ == frame.size();
  const std::size_t length = bytes + kTagBytes, at = cipher_.size();
  cipher_.resize(at + kLengthBytes + length);
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    cipher_[at + i] = static_cast<std::byte>(length >> (8 * i) & 0xff);
  crypto_secretstream_xchacha20poly1305_push(&state_, raw(cipher_.data() + at + kLengthBytes),
                                             nullptr, raw(plain.data()), bytes, nullptr, 0,
                                             last ? kLast : kMore);
  if (last) {
    std::vector<std::byte> room = std::move(frames_.front().head);
    if (spare_.size() < kSpareFrames && room.capacity() <= kMaxSpare)
      spare_.push_back(std::move(room));
    frames_.pop_front();
    encrypted_ = 0;
  }
}

Flow SecureWriter::flush(int socket) {
  for (;;) {
    // Small frames share a send(); a chunk of a long frame is encrypted once the one before is
    // sent.
    while (!frames_.empty() && cipher_.size() - sent_ < kChunkBytes / 4) encrypt_chunk();
    if (sent_ == cipher_.size()) return Flow::open;
    const ssize_t n =
        ::send(socket, cipher_.data() + sent_, cipher_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return retriable(errno) ? Flow::open : Flow::ended;
    sent_ += static_cast<std::size_t>(n);
    if (cipher_.size() - sent_ < kChunkBytes / 4) {
      cipher_.erase(cipher_.begin(), cipher_.begin() + static_cast<std::ptrdiff_t>(sent_));
      sent_ = 0;
    }
  }
}

Flow SecureReader::read(int socket, std::size_t max_bytes, const OnFrame& on_frame) {
  std::array<std::byte, kChunkBytes> buffer;
  // A few rounds only, so that other connections get their turn; poll() reports the rest.
  for (int round = 0; round < 8; ++round) {
    const ssize_t n = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return retriable(errno) ? Flow::open : Flow::ended;
    if (n == 0) return Flow::ended;
    const auto bytes = std::span(buffer).first(static_cast<std::size_t>(n));
    if (feed(bytes, max_bytes, on_frame) == Flow::ended) return Flow::ended;
    if (bytes.size() < buffer.size()) return Flow::open;
  }
  return Flow::open;
}

Flow SecureReader::feed(std::span<const std::byte> bytes, std::size_t max_bytes,
                        const OnFrame& on_frame) {
  raw_.insert(raw_.end(), bytes.begin(), bytes.end());
  std::span<const std::byte> rest = raw_;
  if (!started_) {
    if (rest.size() < kStartBytes) return Flow::open;
    if (crypto_secretstream_xchacha20poly1305_init_pull(&state_, raw(rest.data()),
                                                        raw(key_.data())) != 0)
      return Flow::ended;
    rest = rest.subspan(kStartBytes);
    started_ = true;
  }
  while (rest.size() >= kLengthBytes) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i)
      length |= std::to_integer<std::size_t>(rest[i]) << (8 * i);
    if (length < kTagBytes || length > kChunkBytes + kTagBytes) return Flow::ended;
    if (rest.size() - kLengthBytes < length) break;
    if (decrypt_chunk(rest.subspan(kLengthBytes, length), max_bytes, on_frame) == Flow::ended)
      return Flow::ended;
    rest = rest.subspan(kLengthBytes + length);
  }
  raw_.erase(raw_.begin(), raw_.end() - static_cast<std::ptrdiff_t>(rest.size()));
  return Flow::open;
}

Flow SecureReader::decrypt_chunk(std::span<const std::byte> cipher, std::size_t max_bytes,
                                 const OnFrame& on_frame) {
  const std::size_t plain = cipher.size() - kTagBytes, at = frame_.size();
  if (plain > max_bytes || at > max_bytes - plain) return Flow::ended;
  frame_.resize(at + plain);
  unsigned char tag = 0;
  if (crypto_secretstream_xchacha20poly1305_pull(&state_, raw(frame_.data() + at), nullptr, &tag,
                                                 raw(cipher.data()), cipher.size(), nullptr,
                                                 0) != 0)
    return Flow::ended;
  if (tag == kMore) return Flow::open;
  const auto whole = parse_frame(frame_, parsed_);
  forget(frame_, kMaxKept);
  if (!whole || !on_frame(parsed_)) return Flow::ended;
  forget(parsed_.bytes, kMaxKept);
  return Flow::open;
}

}  // namespace reshard::tcp
