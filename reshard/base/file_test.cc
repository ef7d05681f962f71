// SPDX-License-Identifier: Apache-2.0
// Protects: a file appears complete or not at all.
#include "reshard/base/file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>

namespace reshard {
namespace {

std::string outcome(const Result<>& result) { return result ? "" : result.error().message; }

class WholeFile : public testing::Test {
 protected:
  WholeFile() {
    std::string name = testing::TempDir() + "fileXXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~WholeFile() override {
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/some.file"; }
  std::string content() const {
    std::stringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }
  std::string folder_;
};

TEST_F(WholeFile, is_replaced_as_a_whole) {
  EXPECT_EQ(outcome(write_whole_file(path(), "first")), "");
  EXPECT_EQ(outcome(write_whole_file(path(), "second")), "");
  EXPECT_EQ(content(), "second");
  EXPECT_NE(::access((path() + ".partial").c_str(), F_OK), 0);
}

TEST_F(WholeFile, that_cannot_be_written_is_an_error_that_names_it) {
  EXPECT_EQ(outcome(check_writable(path())), "");
  EXPECT_NE(::access(path().c_str(), F_OK), 0);
  const auto missing = check_writable(folder_ + "/none/some.file");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::io);
  EXPECT_NE(missing.error().message.find("none/some.file"), std::string::npos);
  EXPECT_NE(outcome(write_whole_file(folder_, "x")), "");
}

}  // namespace
}  // namespace reshard
