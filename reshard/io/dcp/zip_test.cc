// SPDX-License-Identifier: Apache-2.0
// Protects: an archive that two readers would read differently is read by none.
#include "reshard/io/dcp/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/dcp/torch_archive.h"
#include "reshard/io/dcp/torch_item.h"
#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard::dcp {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

/// An archive of these entries, not compressed.
std::string archive_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out, directory;
  for (const auto& [name, content] : entries) {
    const std::size_t offset = out.size();
    put(out, 0x04034b50, 4);
    out.append(14, '\0');
    put(out, content.size(), 4);
    put(out, content.size(), 4);
    put(out, name.size(), 2);
    put(out, 0, 2);
    out += name + content;
    put(directory, 0x02014b50, 4);
    directory.append(16, '\0');
    put(directory, content.size(), 4);
    put(directory, content.size(), 4);
    put(directory, name.size(), 2);
    directory.append(12, '\0');
    put(directory, offset, 4);
    directory += name;
  }
  const std::size_t at = out.size();
  out += directory;
  put(out, 0x06054b50, 4);
  put(out, 0, 4);
  put(out, entries.size(), 2);
  put(out, entries.size(), 2);
  put(out, directory.size(), 4);
  put(out, at, 4);
  put(out, 0, 2);
  return out;
}

TEST(Zip, lists_what_is_in_it) {
  const std::string archive = archive_of({{"a/x", "12"}, {"a/y", ""}});
  const auto entries = zip_entries(bytes_of(archive));
  ASSERT_TRUE(entries) << entries.error().message;
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_EQ(entries->at("a/x").size(), 2U);
}

TEST(Zip, two_entries_of_one_name_are_refused) {
  const std::string archive = archive_of({{"a/data/0", "12"}, {"a/x", ""}, {"a/data/0", "34"}});
  const auto entries = zip_entries(bytes_of(archive));
  ASSERT_FALSE(entries);
  EXPECT_EQ(entries.error().message, "archive entry \"a/data/0\" is there twice");
}

TEST(Zip, an_item_of_two_pickles_is_refused) {
  const std::string pickle = torch_archive(DType::u8, {2}).pickle;
  const std::string one =
      archive_of({{"a/data.pkl", pickle}, {"a/data/0", "12"}, {"b/data/0", "34"}});
  const auto item = read_torch_item(bytes_of(one));
  ASSERT_TRUE(item) << item.error().message;
  EXPECT_EQ(one.substr(static_cast<std::size_t>(item->offset), 2), "12");
  const std::string two = archive_of(
      {{"b/data.pkl", pickle}, {"b/data/0", "34"}, {"a/data.pkl", pickle}, {"a/data/0", "12"}});
  const auto refused = read_torch_item(bytes_of(two));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("two data.pkl"));
}

}  // namespace
}  // namespace reshard::dcp
