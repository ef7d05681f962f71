// SPDX-License-Identifier: Apache-2.0
// Protects: a decoder inside a larger model is found under any prefix of its checkpoint.
#include "reshard/model/names.h"

#include <gtest/gtest.h>

#include "reshard/model/canonical.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/model/families/transformers_modules.h"

namespace reshard {
namespace {

/// The model's tensors with `decoder` in place of "model." or "backbone.", and `head` before
/// lm_head.
ModelSpec renamed(const ModelConfig& c, const std::string& decoder, const std::string& head) {
  ModelSpec out;
  const std::string usual = HfNames(c).decoder();
  const auto model = model_of(c);
  for (const CanonicalTensor& t : model->tensors()) {
    std::string name = t.name;
    if (name.starts_with(usual)) name.replace(0, usual.size(), decoder);
    if (name == "lm_head.weight") name = head + name;
    EXPECT_TRUE(out.add(name, t.shape, t.dtype, t.merged));
  }
  return out;
}

/// "decoder|head" of what detect_prefixes() found.
std::string prefixes(const ModelSpec& stored, ModelConfig c) {
  detect_prefixes(stored, c);
  if (c.decoder_prefix) {
    EXPECT_TRUE(check_against(stored, *canonical_tensors(c)));
  }
  return c.decoder_prefix.value_or("as usual") + "|" + c.head_prefix;
}

TEST(Names, a_decoder_is_found_under_any_prefix) {
  for (const ModelConfig& c : tiny_models()) {
    EXPECT_EQ(prefixes(*model_of(c), c), "as usual|") << c.architecture;
    EXPECT_EQ(prefixes(renamed(c, "", ""), c), "|") << c.architecture;
    EXPECT_EQ(prefixes(renamed(c, "model.language_model.", ""), c), "model.language_model.|")
        << c.architecture;
    const std::string head = c.tie_word_embeddings ? "" : "language_model.";
    EXPECT_EQ(prefixes(renamed(c, "language_model.model.", "language_model."), c),
              "language_model.model.|" + head)
        << c.architecture;
  }
}

TEST(Names, what_modules_call_the_backbone_is_no_prefix_of_a_larger_model) {
  for (const ModelConfig& c : tiny_models()) {
    if (c.model_type != "nemotron_h") continue;
    EXPECT_EQ(prefixes(renamed(c, "model.", ""), c), "as usual|");
    EXPECT_EQ(module_name(c, "backbone.norm_f.weight"), "model.norm_f.weight");
  }
}

TEST(Names, what_is_no_decoder_gives_no_prefix) {
  const ModelConfig c = tiny_dense();
  ModelSpec none, two = renamed(c, "a.", "");
  ASSERT_TRUE(none.add("model.visual.embed_tokens.weight", {2, 2}, DType::bf16));
  EXPECT_EQ(prefixes(none, c), "as usual|");
  for (const char* name : {"b.embed_tokens.weight", "b.norm.weight"})
    ASSERT_TRUE(two.add(name, {2, 2}, DType::bf16));
  ModelConfig found = c;
  detect_prefixes(two, found);
  EXPECT_FALSE(found.decoder_prefix) << "two could be meant";
}

}  // namespace
}  // namespace reshard
