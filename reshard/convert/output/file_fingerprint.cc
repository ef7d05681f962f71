// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/output/file_fingerprint.h"

#include <algorithm>

#include "reshard/io/files/mapped_file.h"
#include "reshard/transform/fingerprint_key.h"

namespace reshard::output {

FileFingerprint::FileFingerprint(std::int64_t bytes)
    : key_(*FingerprintKey::make("file", Dims{bytes}, DType::u8)) {}  // bytes are always possible

void FileFingerprint::add(std::int64_t offset, std::span<const std::byte> piece) {
  const Interval range{offset, offset + static_cast<std::int64_t>(piece.size())};
  const auto print = fingerprint(key_, Box{range}, Strided{0, Dims{1}}, piece.data());
  const std::lock_guard lock(mutex_);
  sum_ += *print;  // of whole bytes there is always one
}

Fingerprint FileFingerprint::value() const {
  const std::lock_guard lock(mutex_);
  return sum_;
}

std::string FileFingerprint::text() const { return to_string(value()); }

Result<std::string> fingerprint_of_file(const std::string& path) {
  constexpr std::int64_t kStep = std::int64_t{64} << 20;
  const MappedFile file = RESHARD_TRY(MappedFile::open(path));
  file.advise_sequential();
  FileFingerprint fingerprint(file.size());
  for (std::int64_t at = 0; at < file.size(); at += kStep) {
    const std::int64_t bytes = std::min(kStep, file.size() - at);
    fingerprint.add(
        at, file.bytes().subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes)));
    file.drop(at, bytes);
  }
  RESHARD_TRY(file.unchanged());
  return fingerprint.text();
}

}  // namespace reshard::output
