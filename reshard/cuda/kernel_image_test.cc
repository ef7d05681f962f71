// SPDX-License-Identifier: Apache-2.0
// Protects: the driver, which trusts the sizes in the code of kernels, gets only whole files.
#include "reshard/cuda/kernel_image.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace reshard::cuda {
namespace {

class KernelImage : public ::testing::Test {
 protected:
  KernelImage() {
    std::string name = ::testing::TempDir() + "reshard_image_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~KernelImage() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/kernels.fatbin"; }
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

TEST_F(KernelImage, AFileThatIsTooLargeIsNotRead) {
  std::ofstream(path()) << "";
  std::filesystem::resize_file(path(), (std::size_t{256} << 20) + 1);
  EXPECT_NE(read_kernel_image(path()).error().message.find("at most"), std::string::npos);
}

TEST_F(KernelImage, TheImageOfTheBuildIsOne) {
  if (kernel_image().empty()) GTEST_SKIP() << "no nvcc";
  const auto* bytes = reinterpret_cast<const char*>(kernel_image().data());
  EXPECT_EQ(error_of({bytes, kernel_image().size()}), "");
}

}  // namespace
}  // namespace reshard::cuda
