// SPDX-License-Identifier: Apache-2.0
// Protects: a delta's file, whatever its content, is refused for a reason that names what is wrong,
// before memory is allocated for what it claims.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "reshard/base/hash.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/delta/delta_file.h"
#include "reshard/transform/delta/delta_code.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

/// A whole delta of a folder with a safetensors file and a config, before it is written.
struct Draft {
  DeltaIndex index;
  StringMap metadata;
  std::vector<TensorSpec> tensors;

  Draft() {
    const Fingerprint a{{1, 2}}, b{{3, 4}};
    index.parts = {
        {"config.json", "", PartState::unchanged, 1, 7, a, a, {}},
        {"m.safetensors", "", PartState::added, 1, 9, {}, b, {{10, 5, 0}}},
        {"m.safetensors", "w", PartState::changed, 2, 2'000'000, a, b, {{0, 0, 0}, {6, 7, 0}}},
        {"m.safetensors", "gone", PartState::removed, 4, 8, a, {}, {}}};
    seal();
  }

  /// Makes metadata and tensors those of the index.
  void seal() {
    const auto bytes = serialise(index);
    metadata = delta_metadata(
        {base_fingerprint(index), result_fingerprint(index), base_fingerprint(index), 1}, bytes);
    tensors = {{"index", DType::u8, Dims{static_cast<Index>(bytes.size())}}};
    for (const DeltaPart& part : index.parts)
      if (part.code_bytes() > 0)
        tensors.push_back({delta_tensor_name(part), DType::u8, Dims{part.code_bytes()}});
  }

  std::string file() const {
    const auto plan = plan_safetensors(tensors, metadata);
    EXPECT_TRUE(plan.has_value());
    const auto bytes = serialise(index);
    std::string text = plan->head;
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text.resize(static_cast<std::size_t>(plan->file_bytes));
    return text;
  }
};

std::string why_not(const Draft& draft) {
  const std::string file = draft.file();
  const auto delta = parse_delta(std::as_bytes(std::span(file)));
  if (!delta) {
    EXPECT_EQ(delta.error().message.find('\n'), std::string::npos);
  }
  return delta ? "" : delta.error().message;
}

/// A change to the whole delta, and the words of its refusal.
struct Case {
  std::function<void(Draft&)> change;
  const char* words;
};

TEST(HostileDelta, is_refused_for_what_its_metadata_says) {
  EXPECT_EQ(why_not(Draft()), "");
  const Case cases[] = {
      {[](Draft& d) { d.metadata.clear(); }, "is no delta"},
      {[](Draft& d) { d.metadata["format"] = "pt"; }, "is no delta"},
      {[](Draft& d) { d.metadata["format"] = "reshard.delta/2"; }, "this version reads"},
      {[](Draft& d) { d.metadata.erase("base"); }, "has no 'base'"},
      {[](Draft& d) { d.metadata["base"] = "12"; }, "which is no 16 hexadecimal digits"},
      {[](Draft& d) { d.metadata["result"] = std::string(16, 'F'); }, "hexadecimal digits"},
      {[](Draft& d) { d.metadata["step"] = "0"; }, "step 0 must be from 1"},
      {[](Draft& d) { d.metadata["step"] = "-1"; }, "which is no number"},
      {[](Draft& d) { d.metadata["step"] = "01"; }, "which is no number"},
      {[](Draft& d) { d.metadata["step"] = "99999999999999999"; }, "must be from 1 to"},
      {[](Draft& d) { d.metadata["anchor"] = hex(1); }, "does not begin with its anchor"},
      {[](Draft& d) { d.metadata["index"] = hex(1); }, "index differs from its hash"},
      {[](Draft& d) { d.metadata["result"] = hex(1); }, "of other checkpoints than"},
      {[](Draft& d) { d.tensors[0].name = "x"; }, "has no tensor 'index'"},
  };
  for (const auto& [change, words] : cases) {
    Draft draft;
    change(draft);
    EXPECT_THAT(why_not(draft), HasSubstr(words));
  }
}

TEST(HostileDelta, is_refused_for_tensors_that_its_index_does_not_ask_for) {
  Draft draft;
  draft.tensors.back().shape = Dims{Index{5}};
  EXPECT_THAT(why_not(draft), HasSubstr("\"m.safetensors:w\" must be 6 bytes of dtype U8"));
  draft.tensors.pop_back();
  EXPECT_THAT(why_not(draft), HasSubstr("has no tensor \"m.safetensors:w\""));
  draft.seal();
  draft.tensors.push_back({"more", DType::u8, Dims{Index{1}}});
  EXPECT_THAT(why_not(draft), HasSubstr("has 4 tensors, its index asks for 3"));
}

TEST(HostileDelta, is_refused_for_an_index_that_is_of_no_checkpoints) {
  const Case cases[] = {
      {[](Draft& d) { d.index.parts[0].file = "../config.json"; }, "plain name"},
      {[](Draft& d) { d.index.parts[0].file = "/etc/passwd"; }, "plain name"},
      {[](Draft& d) { d.index.parts[0].file = "a//b"; }, "plain name"},
      {[](Draft& d) { d.index.parts[0].file = ""; }, "plain name"},
      {[](Draft& d) { d.index.parts[0].file = std::string(1025, 'a'); }, "the name of a file"},
      {[](Draft& d) { d.index.parts[0].file = "z"; }, "files are out of order"},
      {[](Draft& d) { d.index.is_one_file = true; }, "several files of a checkpoint that is one"},
      {[](Draft& d) { d.index.parts[1].name = "w"; }, "the first part of a file is its header"},
      {[](Draft& d) { d.index.parts[2].name = ""; }, "and no other is"},
      {[](Draft& d) { d.index.parts[3].name = "w"; }, "is in the base twice"},
      {[](Draft& d) { std::swap(d.index.parts[2], d.index.parts[3]); },
       "comes after one that was removed"},
      {[](Draft& d) { d.index.parts[2].width = 3; }, "must be 1, 2, 4 or 8"},
      {[](Draft& d) { d.index.parts[2].bytes = 2'000'001; }, "bytes of elements of 2"},
      {[](Draft& d) { d.index.parts[0].bytes = (Index{1} << 62) - 9; }, "larger than 2^62"},
      {[](Draft& d) { d.index.parts[0].bytes = (Index{1} << 62) + 1; }, "a size"},
      {[](Draft& d) { d.index.parts[2].bytes = Index{1} << 61; }, "are more than its bytes"},
      {[](Draft& d) { d.index.parts[2].blocks[1].bytes = 0; }, "no change in a part"},
      {[](Draft& d) { d.index.parts[2].blocks[1].bytes = 1 << 21; }, "the size of a code"},
      {[](Draft& d) { d.index.parts[1].blocks[0].bytes = 3; }, "without a base is not whole"},
      {[](Draft& d) { d.index.parts.resize(0); }, "its result has no files"},
      {[](Draft& d) { d.index.parts.erase(d.index.parts.begin(), d.index.parts.end() - 1); },
       "its result has no files"},
  };
  for (const auto& [change, words] : cases) {
    Draft draft;
    change(draft);
    const auto index = parse_delta_index(serialise(draft.index));
    ASSERT_FALSE(index.has_value()) << words;
    EXPECT_EQ(index.error().code, Code::corrupt);
    EXPECT_THAT(index.error().message, HasSubstr(words));
  }
}

TEST(HostileDelta, with_two_parts_of_one_tensor_is_refused) {
  Draft draft;
  DeltaPart part = draft.index.parts[1];  // added
  part.file = "m";
  draft.index.parts.insert(draft.index.parts.begin() + 1, part);
  part.name = "b:c";
  draft.index.parts.insert(draft.index.parts.begin() + 2, part);
  part.file = "m:b";
  part.name = "";
  draft.index.parts.push_back(part);
  part.name = "c";
  draft.index.parts.push_back(part);
  draft.seal();
  const auto bytes = serialise(draft.index);
  ASSERT_TRUE(parse_delta_index(bytes).has_value()) << parse_delta_index(bytes).error().message;
  draft.tensors.pop_back();  // safetensors have no two tensors of one name either
  EXPECT_THAT(why_not(draft), HasSubstr("two parts are called \"m:b:c\""));
}

TEST(HostileDelta, damaged_anywhere_is_refused_or_says_the_same) {
  std::mt19937 random(1);
  const std::string good = Draft().file();
  for (int round = 0; round < 5000; ++round) {
    std::string file = good;
    file[random() % file.size()] ^= static_cast<char>(1 + random() % 255);
    if (round % 8 == 0) file.resize(random() % file.size());
    const auto delta = parse_delta(std::as_bytes(std::span(file)));
    if (!delta) {
      EXPECT_EQ(delta.error().message.find('\n'), std::string::npos);
    }
  }
}

TEST(HostileDelta, index_has_one_form_only) {
  const auto good = serialise(Draft().index);
  std::vector<std::byte> longer = {std::byte{0x80}, std::byte{0}};  // 0 in two bytes
  longer.insert(longer.end(), good.begin() + 1, good.end());
  const auto refused = parse_delta_index(longer);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("longer than it must be"));
  longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THAT(parse_delta_index(longer).error().message, HasSubstr("after the end"));
}

}  // namespace
}  // namespace reshard
