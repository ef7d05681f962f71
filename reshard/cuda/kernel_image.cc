// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/kernel_image.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "reshard/base/file.h"
#include "reshard/base/install_dirs.h"

namespace reshard::cuda {
namespace {

constexpr off_t kMaxImageBytes = off_t{256} << 20;

/// How a file of `nvcc -fatbin` begins (fatbinary.h of the toolkit), little-endian.
struct FatbinHeader {
  std::uint32_t magic = 0;
  std::uint16_t version = 0, header_bytes = 0;
  std::uint64_t bytes = 0;  ///< of what follows the header.
};
constexpr std::uint32_t kFatbinMagic = 0xba55ed50;

auto fail_at(const std::string& path, const char* what) {
  return fail(Code::io, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

Result<std::vector<std::byte>> read_regular(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0) return fail_at(path, "cannot read");
  if (!S_ISREG(status.st_mode)) return fail(Code::io, fmt::format("{}: is not a file", path));
  if (status.st_size > kMaxImageBytes)
    return fail(Code::io, fmt::format("{}: has {} bytes; code of kernels has at most {}", path,
                                      status.st_size, kMaxImageBytes));
  std::vector<std::byte> out(static_cast<std::size_t>(status.st_size));
  std::size_t size = 0;
  while (size < out.size()) {
    const ssize_t n = ::read(file.get(), out.data() + size, out.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_at(path, "cannot read");
    if (n == 0) break;  // It was cut off meanwhile.
    size += static_cast<std::size_t>(n);
  }
  out.resize(size);
  return out;
}

}  // namespace

Result<std::vector<std::byte>> read_kernel_image(const std::string& path) {
  auto image = RESHARD_TRY(read_regular(path));
  FatbinHeader header;
  if (image.size() >= sizeof header) std::memcpy(&header, image.data(), sizeof header);
  if (header.magic != kFatbinMagic || header.header_bytes < sizeof header ||
      header.header_bytes > image.size())
    return fail(Code::corrupt, fmt::format("{}: is not what nvcc -fatbin writes", path));
  // The driver is not told the size of the file, so it would read past the end.
  if (header.bytes > image.size() - header.header_bytes)
    return fail(Code::corrupt, fmt::format("{}: has {} bytes, but says {}", path,
                                           image.size() - header.header_bytes, header.bytes));
  return image;
}

Result<KernelImageFiles> find_kernel_images(std::span<const std::filesystem::path> folders) {
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path main = folder / "kernels.fatbin";
    std::error_code failed;
    if (!std::filesystem::exists(main, failed)) continue;
    return KernelImageFiles{
        .main = RESHARD_TRY(read_kernel_image(main)),
        .portable = RESHARD_TRY(read_kernel_image(folder / "portable_kernels.fatbin"))};
  }
  return KernelImageFiles{};
}

Result<KernelImages> chosen_kernel_images() {
  static const auto chosen = []() -> Result<KernelImageFiles> {
    const char* const path = std::getenv("RESHARD_CUDA_IMAGE");
    if (path == nullptr || *path == '\0') {
      if (!kernel_images().main.empty()) return KernelImageFiles{};
      return find_kernel_images(install_dirs());
    }
    auto image = read_kernel_image(path);
    if (!image) return tl::unexpected(std::move(image).error().in("RESHARD_CUDA_IMAGE"));
    return KernelImageFiles{.main = std::move(*image), .portable = {}};
  }();
  if (!chosen) return tl::unexpected(chosen.error());
  if (chosen->main.empty()) return kernel_images();
  return KernelImages{.main = chosen->main, .portable = chosen->portable};
}

}  // namespace reshard::cuda
