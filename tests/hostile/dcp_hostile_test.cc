// SPDX-License-Identifier: Apache-2.0
// Protects: a distributed checkpoint's pickles call nothing: each instruction that would is refused
// by the name of what it wanted, and wrong sizes and places are errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/io/dcp/known_classes.h"
#include "reshard/io/dcp/metadata.h"
#include "reshard/io/dcp/torch_item.h"
#include "reshard/io/files/json.h"
#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/pickle/unpickle.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using namespace std::string_literals;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

struct PickleCase {
  const char* name;
  std::string pickle;
  const char* words;
  Code code = Code::unsupported;
};

std::ostream& operator<<(std::ostream& out, const PickleCase& c) { return out << c.name; }

/// Instructions of a pickle of protocol 4.
std::string program(const std::string& instructions) { return "\x80\x04"s + instructions + "."; }
/// SHORT_BINUNICODE
std::string text(const std::string& s) { return "\x8c"s + static_cast<char>(s.size()) + s; }

const std::string kIndex = "ctorch.distributed.checkpoint.metadata\nMetadataIndex\n";
const std::string kGetattr = "cbuiltins\ngetattr\n";
const std::string kEnum = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n";
/// As Python before 3.11.4 writes members of enums.
const std::string kMember = kGetattr + kEnum + text("TORCH_CONTIGUOUS_FORMAT") + "\x86R";

std::vector<PickleCase> calls() {
  return {
      {"global", program("cos\nsystem\n"), "wants \"os.system\""},
      {"stack_global", program(text("os") + text("system") + "\x93"), "wants \"os.system\""},
      {"stack_global_of_numbers", program("K\1K\2\x93"), "wants the class the number 2"},
      {"global_in_memo", program("cbuiltins\neval\nq\0"s), "wants \"builtins.eval\""},
      {"reduce_of_a_global", program("cposix\nsystem\n" + text("id") + "\x85R"), "posix.system"},
      {"reduce_of_text", program(text("os.system") + text("id") + "\x85R"),
       "wants to call the text \"os.system\" (REDUCE)"},
      {"reduce_of_an_object", program(kIndex + ")R)R"), "wants to call an object of"},
      {"newobj_of_text", program(text("subprocess.Popen") + ")\x81"),
       "wants to call the text \"subprocess.Popen\" (NEWOBJ)"},
      {"newobj_ex", program(kIndex + ")}\x92"),
       "wants to call \"torch.distributed.checkpoint.metadata.MetadataIndex\" with a tuple of 0 "
       "and "
       "a dict (NEWOBJ_EX)"},
      {"getattr_of_a_class", program(kGetattr + kIndex + text("__init__") + "\x86R"),
       "wants \"builtins.getattr\" of what is no enum"},
      {"getattr_of_text", program(kGetattr + text("os") + text("system") + "\x86R"),
       "wants \"builtins.getattr\" of what is no enum"},
      {"getattr_of_an_object", program(kGetattr + kEnum + "K\0\x85R"s + text("x") + "\x86R"),
       "wants \"builtins.getattr\" of what is no enum"},
      {"member_of_an_enum_is_called", program(kMember + ")R"), "wants to call an object of"},
      {"inst", program("(" + text("id") + "ios\nsystem\n"), "wants to call \"os.system\" (INST)"},
      {"obj", program("(" + kIndex + text("id") + "o"), "MetadataIndex\" (OBJ)"},
      {"build_of_a_dict", program("}}b"), "wants to set the state of a dict (BUILD)"},
      {"build_of_a_class", program(kIndex + "}b"), "wants to set the state of"},
      {"build_twice", program(kIndex + ")R}b}b"), "wants to set the state of"},
      {"ext1", program("\x82\x07"), "wants extension 7 of copyreg's registry (EXT1)"},
      {"ext2", program("\x83\x07\x01"), "wants extension 263 of copyreg's registry (EXT2)"},
      {"ext4", program("\x84\x07\x00\x00\x00"s), "wants extension 7 of copyreg's registry (EXT4)"},
      {"persid", program("Pfile:///etc/passwd\n"),
       "wants the object of persistent id \"file:///etc/passwd\" (PERSID)"},
      {"binpersid", program(text("storage") + "Q"),
       "wants the object of persistent id the text \"storage\" (BINPERSID)"},
  };
}

std::vector<PickleCase> broken() {
  const Code corrupt = Code::corrupt;
  return {
      {"empty", "", "ends before its end", corrupt},
      {"no_stop", "\x80\x04N", "ends before its end", corrupt},
      {"nothing_on_the_stack", program(""), "the stack is empty", corrupt},
      {"too_much_on_the_stack", program("NN"), "values are left", corrupt},
      {"open_mark", program("(N"), "values are left", corrupt},
      {"after_the_end", program("N") + "N", "1 bytes follow the end", corrupt},
      {"protocol_9", "\x80\x09N.", "a protocol above 5", corrupt},
      {"frame_too_long", program("\x95\xff\xff\xff\xff\0\0\0\0N"s), "a frame beyond the end",
       corrupt},
      {"text_too_long", program("X\xff\xff\xff\x7f"), "bytes of content", corrupt},
      {"text_of_2_63", program("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"), "bytes of content",
       corrupt},
      {"number_of_9_bytes", program("\x8a\x09"s + std::string(9, '\1')), "a number of 9 bytes",
       corrupt},
      {"memo_unset", program("h\5"), "nothing at place 5", corrupt},
      {"memo_far", program("Nr\xff\xff\xff\xff"), "place 4294967295 in the memo", corrupt},
      {"no_mark", program("t"), "no mark is open", corrupt},
      {"pop_through_a_mark", program("N(0"), "the stack is empty", corrupt},
      {"append_to_a_number", program("K\1Na"), "which takes none", corrupt},
      {"key_without_value", program("}(Nu"), "a key without a value", corrupt},
      {"deep", program(std::string(5000, '(')), "too deep", corrupt},
      {"protocol_0_text", program("S'x'\n"), "instruction 0x53", corrupt},
      {"a_set", program("\x8f"), "instruction 0x8f", corrupt},
      {"not_metadata", program("N"), "must be a torch.distributed.checkpoint Metadata", corrupt},
  };
}

class RefusedPickles : public ::testing::TestWithParam<PickleCase> {};

TEST_P(RefusedPickles, InAMetadataFileAreErrorsThatSayWhatTheyWanted) {
  const auto read = dcp::parse_metadata(as_bytes(GetParam().pickle));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, GetParam().code) << read.error().message;
  EXPECT_THAT(read.error().message, HasSubstr(GetParam().words));
  EXPECT_EQ(read.error().message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Calls, RefusedPickles, ::testing::ValuesIn(calls()),
                         [](const auto& c) { return std::string(c.param.name); });
INSTANTIATE_TEST_SUITE_P(Broken, RefusedPickles, ::testing::ValuesIn(broken()),
                         [](const auto& c) { return std::string(c.param.name); });

TEST(PickleTest, AMillionValuesInAFewBytesAreRefused) {
  std::string numbers(1000, 'K');
  numbers += ']';
  const std::string pickle = program(numbers);
  const auto read = pickle::unpickle(as_bytes(pickle), {.known = {}, .values = 100});
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("more values than are read"));
}

TEST(PickleTest, AMemberOfAnEnumIsReadAsDataIfTheReaderKnowsTheEnum) {
  const pickle::Name known[] = {{dcp::kMetadataModule, "_MEM_FORMAT_ENCODING"}};
  const std::string pickle = program(kMember);
  const auto read = pickle::unpickle(as_bytes(pickle), {.known = known, .enums = known});
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->made_by(read->root()), (pickle::Name{"builtins", "getattr"}));
  const auto refused = pickle::unpickle(as_bytes(pickle), {.known = known});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("wants \"builtins.getattr\""));
}

TEST(PickleTest, AListThatContainsItselfIsReadAsData) {
  const std::string pickle = program("]q\0h\0a"s);
  const auto read = pickle::unpickle(as_bytes(pickle), {.known = {}});
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->items(read->root())[0], read->root());
}

dcp::Metadata one_tensor(const dcp::Item& item) {
  return {{{"w", DType::f32, {2, 3}, {{{0, 0}, {2, 3}, item}}}}, {}};
}

TEST(DcpMetadataTest, ReadsBackWhatItWrites) {
  dcp::Metadata metadata = one_tensor({"__0_0.distcp", 5, 700});
  metadata.tensors[0].chunks = {{{0, 0}, {1, 3}, {"__0_0.distcp", 5, 700}},
                                {{1, 0}, {1, 3}, {"__1_0.distcp", std::int64_t{1} << 40, 300}}};
  metadata.others.push_back({"step", "", {"__0_0.distcp", 0, 5}});
  const std::string bytes = dcp::metadata_bytes(metadata);
  const auto read = dcp::parse_metadata(as_bytes(bytes));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, metadata);
  EXPECT_EQ(dcp::metadata_bytes(*read), bytes);
}

TEST(DcpMetadataTest, RefusesChunksOutsideTheirTensor) {
  auto metadata = one_tensor({"__0_0.distcp", 0, 100});
  for (const auto& [offsets, sizes] : {std::pair(Dims{1, 0}, Dims{2, 3}),
                                       {Dims{0}, Dims{2}},
                                       {Dims{3, 0}, Dims{0, 0}},
                                       {Dims{0, 0}, Dims{2, std::int64_t{1} << 62}}}) {
    metadata.tensors[0].chunks[0].offsets = offsets;
    metadata.tensors[0].chunks[0].sizes = sizes;
    const auto read = dcp::parse_metadata(as_bytes(dcp::metadata_bytes(metadata)));
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().message, HasSubstr("is not within its shape [2, 3]"));
  }
}

TEST(DcpMetadataTest, RefusesFilesOutsideTheFolder) {
  for (const char* file : {"../x", "/etc/passwd", "", "..", "a/b"}) {
    const std::string bytes = dcp::metadata_bytes(one_tensor({file, 0, 100}));
    const auto read = dcp::parse_metadata(as_bytes(bytes));
    ASSERT_FALSE(read) << file;
    EXPECT_THAT(read.error().message, HasSubstr("\"w\": "));
  }
}

TEST(DcpFolderTest, NamesTheFileAndTensorOfABadItem) {
  const testing::TempDir dir;
  dir.write("__0_0.distcp", std::string(100, 'x'));
  for (const auto& [item, words] : {std::pair(dcp::Item{"__0_0.distcp", 0, 100}, "is no archive"),
                                    {dcp::Item{"__0_0.distcp", 50, 51}, "past the end of the file"},
                                    {dcp::Item{"__0_0.distcp", 0, 5}, "is no archive"},
                                    {dcp::Item{"gone.distcp", 0, 5}, "gone.distcp"}}) {
    dir.write(".metadata", dcp::metadata_bytes(one_tensor(item)));
    const auto opened = Checkpoint::open(dir.path());
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr(words));
    EXPECT_THAT(opened.error().message, HasSubstr(dir.path()));
  }
}

/// A safetensors file with one F32 [2, 3] tensor "w" and this metadata.
std::string shard(const std::string& info) {
  std::string header = R"({"__metadata__":{"DCP_SHARDING_INFO":)" + json_quote(info) +
                       R"(},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xffU);
  return file + header + std::string(24, 'x');
}

TEST(ShardedFilesTest, MetadataOfAnotherFormIsRefused) {
  for (const auto& [info, words] :
       {std::pair("", "DCP_SHARDING_INFO"),
        {"[]", "must be an object, is a list"},
        {"{}", "tensor \"w\": is missing"},
        {R"({"w":{}})", "saved_offsets is missing"},
        {R"({"w":{"saved_offsets":[0]}})", "must be a list of 2 numbers"},
        {R"({"w":{"saved_offsets":[0,-1]}})", "an offset is -1"},
        {R"({"w":{"saved_offsets":[0,"1"]}})", "an offset is \"1\""},
        {R"({"w":{"saved_offsets":[9223372036854775807,0]}})", "an offset is 9223372036854775807"},
        {R"({"w":{"saved_offsets":[4611686018427387904,4611686018427387904]}})", "reaches to"},
        {R"({"w":{"saved_offsets":[2,0]}})", "files are missing"}}) {
    const testing::TempDir dir;
    dir.write("shard-00001-model-00001-of-00001.safetensors", shard(info));
    const auto opened = Checkpoint::open(dir.path());
    ASSERT_FALSE(opened) << info;
    EXPECT_EQ(opened.error().code, Code::corrupt) << info;
    EXPECT_THAT(opened.error().message, HasSubstr(words));
    EXPECT_THAT(opened.error().message, HasSubstr(dir.path()));
  }
}

TEST(ShardedFilesTest, AFileThatEndsEarlyIsRefused) {
  const std::string whole = shard(R"({"w":{"saved_offsets":[0,0]}})");
  for (const std::size_t size : {whole.size() - 1, whole.size() - 24}) {
    const testing::TempDir dir;
    dir.write("a.safetensors", whole);
    dir.write("b.safetensors", whole.substr(0, size));
    const auto opened = Checkpoint::open(dir.path());
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr("b.safetensors"));
    EXPECT_THAT(opened.error().message, HasSubstr("truncated"));
  }
}

TEST(DcpFolderTest, TheSafetensorsWithinAFileMustHoldThePieces) {
  struct Case {
    const char *name, *info, *words;
  };
  for (const Case& c :
       {Case{"w", R"({"w":{"saved_offsets":[2,0]}})", "its piece at [0, 0] is missing"},
        Case{"w", "{}", "tensor \"w\": is missing"},
        Case{"x", R"({"w":{"saved_offsets":[0,0]}})", "is not in its file"}}) {
    const testing::TempDir dir;
    auto metadata = one_tensor({"__0_0.distcp", 6, 24});
    metadata.tensors[0].name = c.name;
    dir.write(".metadata", dcp::metadata_bytes(metadata));
    dir.write("__0_0.distcp", "object" + shard(c.info));
    const auto opened = Checkpoint::open(dir.path());
    ASSERT_FALSE(opened) << c.info;
    EXPECT_THAT(opened.error().message, HasSubstr(c.words));
    EXPECT_THAT(opened.error().message, HasSubstr(dir.path()));
  }
}

TEST(DcpFolderTest, TheDirectoryOfAnArchiveMayNotLeaveIt) {
  // The end of an archive that says: 1 entry, at `offset`.
  const auto end = [](std::uint32_t offset) {
    std::string bytes = "PK\5\6"s + std::string(4, '\0') + "\1\0\1\0"s + std::string(4, '\0');
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(offset >> (8 * i) & 0xffU);
    return bytes + std::string(2, '\0');
  };
  for (const std::uint32_t offset : {0U, 1U, 22U, 0xfffffff0U}) {
    const std::string archive = end(offset);
    const auto read = dcp::read_torch_item(as_bytes(archive));
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().message, HasSubstr("directory is cut off"));
  }
}

}  // namespace
}  // namespace reshard
