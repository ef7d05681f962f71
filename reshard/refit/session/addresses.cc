// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/session/addresses.h"

#include <fmt/format.h>

#include "reshard/base/hash.h"

namespace reshard::session {

Addresses::Addresses(std::string side, const SessionSide& of, Rank me)
    : side_(std::move(side)), me_(me), layout_(of.stored()) {
  if (layout_ == nullptr || !layout_->ranks().contains(me)) return;
  slots_ = layout_->slots_of(me);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    front_.push_back(at(of.buffers, i));
    back_.push_back(at(of.back, i));
  }
}

std::uint64_t Addresses::digest(const SessionSide& now) const {
  std::uint64_t digest = slots_.size();
  const auto add = [&](const std::byte* address) {
    digest = mix64(digest ^ reinterpret_cast<std::uintptr_t>(address));
  };
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    add(at(now.buffers, i));
    add(at(now.back, i));
  }
  return digest;
}

std::string Addresses::change(const SessionSide& now) const {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (at(now.buffers, i) != front_[i] || at(now.back, i) != back_[i])
      return fmt::format("{} tensor '{}' is at another address", side_,
                         layout_->slot(slots_[i]).name);
  return "";
}

}  // namespace reshard::session
