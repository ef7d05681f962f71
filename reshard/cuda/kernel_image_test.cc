// SPDX-License-Identifier: Apache-2.0
// Protects: the driver, which trusts the sizes in the code of kernels, gets only whole files.
#include "reshard/cuda/kernel_image.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

namespace reshard::cuda {
namespace {

class KernelImage : public ::testing::Test {
 protected:
  KernelImage() {
    std::string name = ::testing::TempDir() + "reshard_image_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~KernelImage() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "kernels.fatbin") const {
    return folder_ + "/" + name;
  }
  std::string error_of(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    const auto image = read_kernel_image(path());
    return image ? "" : image.error().message;
  }

  std::string folder_;
};

/// A header that announces four bytes, and those.
const std::string kSmall("\x50\xed\x55\xba\x01\0\x10\0\x04\0\0\0\0\0\0\0code", 20);

TEST_F(KernelImage, AWholeFileIsReadAsItIs) {
  EXPECT_EQ(error_of(kSmall), "");
  const auto image = read_kernel_image(path());
  ASSERT_EQ(image->size(), kSmall.size());
  EXPECT_EQ(std::memcmp(image->data(), kSmall.data(), kSmall.size()), 0);
}

TEST_F(KernelImage, EveryFileThatWasCutOffIsRefused) {
  for (std::size_t size = 0; size < kSmall.size(); ++size)
    EXPECT_NE(error_of(kSmall.substr(0, size)), "") << size;
  EXPECT_NE(error_of(kSmall.substr(0, 19)).find("has 3 bytes, but says 4"), std::string::npos);
}

TEST_F(KernelImage, SizesThatOverflowAreRefused) {
  std::string huge = kSmall;
  huge.replace(8, 8, 8, '\xff');
  EXPECT_NE(error_of(huge).find("but says 18446744073709551615"), std::string::npos);
  std::string header = kSmall;
  header.replace(6, 2, 2, '\xff');
  EXPECT_NE(error_of(header).find("not what nvcc -fatbin writes"), std::string::npos);
}

TEST_F(KernelImage, OtherFilesAreRefused) {
  EXPECT_NE(error_of("\x7f"
                     "ELF and more than a header")
                .find("not what nvcc"),
            std::string::npos);
  EXPECT_NE(read_kernel_image(folder_).error().message.find("is not a file"), std::string::npos);
  EXPECT_NE(read_kernel_image("/dev/zero").error().message.find("is not a file"),
            std::string::npos);
  EXPECT_NE(read_kernel_image(folder_ + "/none").error().message.find("cannot read"),
            std::string::npos);
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(read_kernel_image(pipe).error().message.find("is not a file"), std::string::npos);
}

TEST_F(KernelImage, FilesOfTheFirstFolderThatHasThemAreFound) {
  const std::vector<std::filesystem::path> folders = {folder_ + "/empty", folder_,
                                                      folder_ + "/second"};
  for (const auto& folder : folders) std::filesystem::create_directory(folder);
  EXPECT_TRUE(find_kernel_images(folders)->main.empty());
  for (const auto& folder : {folders[1], folders[2]})
    std::ofstream(folder / "kernels.fatbin") << kSmall;
  EXPECT_NE(
      find_kernel_images(folders).error().message.find("portable_kernels.fatbin: cannot read"),
      std::string::npos);
  std::string other = kSmall;
  other.back() = 'x';
  std::ofstream(path("portable_kernels.fatbin")) << other;
  const auto found = find_kernel_images(folders);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->main.back(), std::byte{'e'});
  EXPECT_EQ(found->portable.back(), std::byte{'x'});
}

TEST_F(KernelImage, AFileThatIsTooLargeIsNotRead) {
  std::ofstream(path()) << "";
  std::filesystem::resize_file(path(), (std::size_t{256} << 20) + 1);
  EXPECT_NE(read_kernel_image(path()).error().message.find("at most"), std::string::npos);
}

/// How an entry of the file begins. Its version is that of PTX.
struct Entry {
  std::uint16_t kind, unused;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  std::uint32_t compressed_bytes, unused2;
  std::uint16_t minor, major;
  std::uint32_t capability, unused3, unused4;
  std::uint64_t flags;
};
constexpr std::uint16_t kPtx = 1, kElf = 2;
constexpr std::uint64_t kZstd = 0x8000;

std::vector<Entry> entries_of(std::span<const std::byte> image) {
  std::vector<Entry> out;
  for (std::size_t at = 16; at < image.size();) {
    Entry entry;
    std::memcpy(&entry, image.data() + at, sizeof entry);
    out.push_back(entry);
    at += entry.header_bytes + entry.bytes;
  }
  return out;
}

TEST_F(KernelImage, TheImagesOfTheBuildAreWhole) {
  if (kernel_images().main.empty()) GTEST_SKIP() << "no nvcc";
  for (const auto image : {kernel_images().main, kernel_images().portable}) {
    const auto* bytes = reinterpret_cast<const char*>(image.data());
    EXPECT_EQ(error_of({bytes, image.size()}), "");
  }
}

// Drivers before 550 do not know zstd, those before 580 no machine code of CUDA 13, those of CUDA
// 12.0 (525) no PTX after 8.0.
TEST_F(KernelImage, ThePortableImageIsForDriversFrom525On) {
  if (kernel_images().portable.empty()) GTEST_SKIP() << "no nvcc";
  bool has_text = false;
  for (const Entry& entry : entries_of(kernel_images().portable)) {
    EXPECT_EQ(entry.flags & kZstd, 0U);
    if (entry.kind == kElf) {
      EXPECT_EQ(entry.major, 1);
      EXPECT_EQ(entry.minor, 7) << "of another CUDA than 12";
      continue;
    }
    ASSERT_EQ(entry.kind, kPtx);
    has_text = true;
    EXPECT_EQ(entry.capability, 80U);
    EXPECT_EQ(entry.major, 7);
    EXPECT_EQ(entry.minor, 8);
  }
  EXPECT_TRUE(has_text);
}

}  // namespace
}  // namespace reshard::cuda
