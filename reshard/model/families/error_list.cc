// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/error_list.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard::families {

void ErrorList::add(const Error& error) {
  std::string message = error.message;
  if (message.starts_with(start_)) message.erase(0, start_.size());
  if (std::find(messages_.begin(), messages_.end(), message) != messages_.end()) return;
  if (messages_.empty()) code_ = error.code;
  messages_.push_back(std::move(message));
}

Result<> ErrorList::result() const {
  if (messages_.empty()) return {};
  const std::size_t shown = std::min(messages_.size(), kMaxShown);
  std::string text = start_;
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : "; ") + messages_[i];
  if (shown < messages_.size()) text += fmt::format("; and {} more", messages_.size() - shown);
  return fail(code_, std::move(text));
}

}  // namespace reshard::families
