// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules/class_names.h"

#include "reshard/model/names.h"

namespace reshard::families {
namespace {

constexpr std::string_view kDecoder = "model.", kHead = "lm_head.weight", kDraft = "mtp.";

}  // namespace

ClassNames::ClassNames(const ModelConfig* config) {
  if (config == nullptr) return;
  const HfNames names(*config);
  decoder_ = names.decoder();
  head_ = names.lm_head();
  same_ = decoder_ == kDecoder && head_ == kHead;
}

std::string_view ClassNames::of(std::string_view name) {
  if (same_ || (decoder_.empty() && name.starts_with(kDraft))) return name;
  if (name == head_) return kHead;
  if (!name.starts_with(decoder_)) return name;
  buffer_ = kDecoder;
  buffer_ += name.substr(decoder_.size());
  return buffer_;
}

std::string ClassNames::in_checkpoint(std::string_view name) const {
  if (same_) return std::string(name);
  if (name == kHead) return head_;
  if (!name.starts_with(kDecoder)) return std::string(name);
  return decoder_ + std::string(name.substr(kDecoder.size()));
}

}  // namespace reshard::families
