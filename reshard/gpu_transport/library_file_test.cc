// SPDX-License-Identifier: Apache-2.0
// Protects: a library is found in the order that library_file.h gives, and if it is not, the error
// says where it was looked for.
#include "reshard/gpu_transport/library_file.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace reshard {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kVariable = "RESHARD_TEST_LIBRARY";

/// Any library of this process.
std::string some_library() {
  Dl_info found{};
  EXPECT_NE(
      dladdr(reinterpret_cast<const void*>(static_cast<double (*)(double)>(std::cos)), &found), 0);
  return found.dli_fname;
}

struct LibraryFiles : testing::Test {
  void SetUp() override {
    // Of this process: tests run side by side.
    folder = fs::path(testing::TempDir()) / ("library_file_test." + std::to_string(getpid()));
    fs::remove_all(folder);
    fs::create_directories(folder);
    unsetenv(kVariable);
    setenv("VIRTUAL_ENV", folder.c_str(), 1);
  }
  void TearDown() override {
    fs::remove_all(folder);
    unsetenv(kVariable);
    unsetenv("VIRTUAL_ENV");
  }
  fs::path folder;
};

TEST_F(LibraryFiles, one_that_the_process_has_loaded_comes_first) {
  setenv(kVariable, "/nowhere/libnothing.so", 1);
  const std::string loaded = some_library();
  EXPECT_TRUE(load_library_file({"Maths", loaded.c_str(), kVariable, "maths"}));
}

TEST_F(LibraryFiles, the_file_that_the_variable_names_comes_next) {
  const fs::path copy = folder / "liba.so";
  fs::copy_file(some_library(), copy);
  setenv(kVariable, copy.c_str(), 1);
  EXPECT_TRUE(load_library_file({"A", "libreshard_no_such_a.so", kVariable, "a"}));
  setenv(kVariable, "/nowhere/libnothing.so", 1);
  const auto missing = load_library_file({"A", "libreshard_no_such_b.so", kVariable, "a"});
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, AllOf(HasSubstr(kVariable), HasSubstr("libnothing.so")));
}

TEST_F(LibraryFiles, a_wheel_of_the_python_environment_comes_last) {
  const fs::path wheel = folder / "lib" / "python3.11" / "site-packages" / "nvidia" / "b" / "lib";
  fs::create_directories(wheel);
  fs::copy_file(some_library(), wheel / "libreshard_wheel_b.so");
  EXPECT_TRUE(load_library_file({"B", "libreshard_wheel_b.so", kVariable, "b"}));
}

TEST_F(LibraryFiles, an_error_says_where_it_was_looked_for) {
  fs::create_directories(folder / "lib" / "python3.11");
  const auto none = load_library_file({"C", "libreshard_no_such_c.so", kVariable, "c"});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::unsupported);
  EXPECT_THAT(none.error().message,
              AllOf(HasSubstr("no C: libreshard_no_such_c.so"), HasSubstr(kVariable),
                    HasSubstr((folder / "lib/python3.11/site-packages/nvidia/c/lib").string())));
}

}  // namespace
}  // namespace reshard
