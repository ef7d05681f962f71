// SPDX-License-Identifier: Apache-2.0
// Protects: no mixture of two versions of an input is committed, also where another program writes
// through a mapping whose pages are dirty already, so that no file time tells.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "reshard/base/file.h"
#include "reshard/convert/hooks.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/files/writers.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr Index kTensors = 16, kBytes = Index{1} << 14;

class InputWriters : public ::testing::Test {
 protected:
  InputWriters() {
    std::vector<TensorBytes> tensors;
    const std::vector<std::byte> ones(std::size_t{kBytes}, std::byte{1});
    for (Index i = 0; i < kTensors; ++i)
      tensors.push_back({{"t" + std::to_string(i), DType::u8, Dims{kBytes}}, ones});
    fs::create_directory(folder_ / "in");
    EXPECT_TRUE(write_safetensors(file_, tensors));
    size_ = fs::file_size(file_);
  }

  ConvertOptions options(const std::string& to = "hf") const {
    return {.input = folder_ / "in",
            .output = folder_ / "out",
            .to = to,
            .buffer_bytes = 4096,
            .threads = 1};
  }

  testing::TempDir folder_;
  const std::string file_ = folder_ / "in/model.safetensors";
  std::size_t size_ = 0;
};

/// A program that writes to a file through a mapping.
class Mapping {
 public:
  Mapping(const std::string& path, std::size_t size) : size_(size) {
    const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    at_ =
        static_cast<char*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    EXPECT_NE(at_, MAP_FAILED);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(at_, size_); }

  /// Sets all bytes of tensors.
  void fill(char value) { std::memset(at_ + size_ - kTensors * kBytes, value, kTensors * kBytes); }

 private:
  std::size_t size_;
  char* at_;
};

TEST_F(InputWriters, a_writer_is_noticed_while_it_has_the_file_open_or_mapped) {
  EXPECT_FALSE(is_open_for_writing(file_));
  {
    const FileDescriptor reader(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_FALSE(is_open_for_writing(file_));
    const FileDescriptor writer(::open(file_.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(is_open_for_writing(file_));
  }
  const Mapping mapping(file_, size_);
  EXPECT_TRUE(is_open_for_writing(file_));
  EXPECT_FALSE(is_open_for_writing(folder_ / "no_such_file"));
}

TEST_F(InputWriters, what_dirty_pages_take_meanwhile_is_not_committed) {
  for (const std::string to : {"hf", "fsdp:shard=2", "dcp:shard=2"}) {
    SCOPED_TRACE(to);
    for (const std::string point : {"piece", "file", "files"}) {
      SCOPED_TRACE(point);
      Mapping mapping(file_, size_);
      mapping.fill(2);
      bool changed = false;
      const auto made = convert_checkpoint(options(to), [&](std::string_view at) {
        if (at != point || changed) return;
        changed = true;
        mapping.fill(3);
      });
      ASSERT_FALSE(made);
      EXPECT_TRUE(changed);
      EXPECT_THAT(made.error().message, HasSubstr("changed while it was read"));
      EXPECT_FALSE(fs::exists(folder_ / "out"));
      EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
    }
  }
}

TEST_F(InputWriters, a_file_that_its_writer_leaves_alone_is_converted) {
  for (const std::string to : {"hf", "fsdp:shard=2", "dcp:shard=2"}) {
    SCOPED_TRACE(to);
    Mapping mapping(file_, size_);
    mapping.fill(2);
    const auto made = convert_checkpoint(options(to), {});
    ASSERT_TRUE(made) << made.error().message;
    const auto same = verify_checkpoints({.a = folder_ / "in", .b = folder_ / "out"});
    ASSERT_TRUE(same) << same.error().message;
    EXPECT_TRUE(same->equal());
    fs::remove_all(folder_ / "out");
  }
}

}  // namespace
}  // namespace reshard
