// SPDX-License-Identifier: Apache-2.0
// Laws 3 to 6: what steps do to bytes. Steps are taken in their order. For each byte of staging and
// target the last writer is known, and who has read it since: whoever uses the byte next must come
// after them. Earlier users come before those, so that this is exact.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reshard/base/int128.h"
#include "reshard/program/check.h"
#include "reshard/program/check/accesses.h"
#include "reshard/program/check/byte_map.h"
#include "reshard/program/check/wrong.h"

namespace reshard {
namespace {

using check::Access;
using BufferKind = ProgramBuffer::Kind;

constexpr std::uint32_t kNoStep = UINT32_MAX;

/// Elements of messages are packed at multiples of their size: gaps are shorter.
constexpr Index kPackedGap = 8;

/// The last users of a byte.
struct Users {
  std::uint32_t writer = kNoStep;
  std::vector<std::uint32_t> readers;  ///< since it was written; ascending.
  friend bool operator==(const Users&, const Users&) = default;
};

class MemoryCheck {
 public:
  MemoryCheck(const Program& program, const ProgramExpectations& expected)
      : p_(program), expected_(expected), users_(program.buffers.size()) {}

  Result<> run();

 private:
  template <class... Args>
  tl::unexpected<Error> wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return check::wrong(p_, fmt::format(format, std::forward<Args>(args)...));
  }
  std::string name(BufferId id) const;
  Result<> size() const;
  void use(const Access& access);
  void use_scratch(const Access& access);
  void use_shared(const Access& access);
  Result<> order();
  Result<> cover();
  bool sends() const { return p_.steps[step_].kind == ProgramStep::Kind::exchange; }
  void note(std::string what) {
    if (error_.empty()) error_ = std::move(what);
  }

  const Program& p_;
  const ProgramExpectations& expected_;
  std::vector<check::ByteMap<Users>> users_;  ///< by buffer.
  check::ByteMap<std::uint32_t> scratch_;     ///< step + 1 that last wrote.
  std::uint32_t step_ = 0;
  std::map<std::uint32_t, std::string> before_;  ///< steps that must come before `step_`; why.
  std::vector<std::uint32_t> seen_, begun_;      ///< by step: the last one that looked at it.
  std::vector<std::uint32_t> exchange_before_;   ///< by exchange; otherwise none.
  std::string error_;
};

std::string MemoryCheck::name(BufferId id) const {
  const ProgramBuffer& b = p_.buffers[id.index()];
  if (b.kind == BufferKind::staging) return "staging";
  if (b.kind == BufferKind::scratch) return "scratch";
  return fmt::format("{} tensor {} of rank {}", b.kind == BufferKind::source ? "source" : "target",
                     b.slot.value(), b.rank.value());
}

/// Law 6.
Result<> MemoryCheck::size() const {
  if (!expected_.cap) return {};
  const Int128 all =
      p_.staging_bytes + static_cast<Int128>(p_.scratch_bytes) * std::max(1, expected_.threads);
  if (all <= *expected_.cap) return {};
  return wrong("law 6: {} bytes of staging and {} of scratch for {} threads, above the cap of {}",
               p_.staging_bytes, p_.scratch_bytes, expected_.threads, *expected_.cap);
}

void MemoryCheck::use_scratch(const Access& a) {
  scratch_.update(a.begin, a.end, [&](std::uint32_t& writer, Index begin, Index end) {
    if (a.writes) writer = step_ + 1;
    if (writer != step_ + 1)
      note(fmt::format("law 4: step {} reads bytes [{}, {}) of scratch, which it has not written",
                       step_, begin, end));
  });
}

void MemoryCheck::use_shared(const Access& a) {
  const bool target = p_.buffers[a.buffer.index()].kind == BufferKind::target;
  users_[a.buffer.index()].update(a.begin, a.end, [&](Users& users, Index begin, Index end) {
    const auto after = [&](std::uint32_t other, const char* what) {
      if (other != kNoStep && other != step_ && !before_.contains(other))
        before_.emplace(other, fmt::format("{} bytes [{}, {}) of {}, which step {} {}",
                                           a.writes ? "writes" : "reads", begin, end,
                                           name(a.buffer), other, what));
    };
    after(users.writer, "writes");
    if (!a.writes) {
      if (users.writer == kNoStep && (target || end - begin >= kPackedGap || !sends()))
        note(fmt::format("law 4: step {} reads bytes [{}, {}) of {}, which no step has written",
                         step_, begin, end, name(a.buffer)));
      if (users.readers.empty() || users.readers.back() != step_) users.readers.push_back(step_);
      return;
    }
    if (target && users.writer != kNoStep)
      note(fmt::format("law 5: step {} writes bytes [{}, {}) of {}, which step {} has written",
                       step_, begin, end, name(a.buffer), users.writer));
    for (const std::uint32_t reader : users.readers) after(reader, "reads");
    users = {step_, {}};
  });
}

void MemoryCheck::use(const Access& a) {
  if (a.begin == a.end) return;
  switch (p_.buffers[a.buffer.index()].kind) {
    case BufferKind::source: return;
    case BufferKind::scratch: return use_scratch(a);
    default: return use_shared(a);
  }
}

/// Law 3: this step must wait for every step in `before_`, directly or through others. Searches the
/// waits backwards. An exchange begins after the exchanges before it, and so after their waits.
Result<> MemoryCheck::order() {
  if (before_.empty()) return {};
  const std::uint32_t first = before_.begin()->first;
  std::vector<std::uint32_t> open{step_};
  while (!open.empty() && !before_.empty()) {
    const std::uint32_t last = open.back();
    open.pop_back();
    for (std::uint32_t s = last; s != kNoStep && s >= first && begun_[s] != step_ + 1;
         s = exchange_before_[s]) {
      begun_[s] = step_ + 1;
      for (const StepId w : p_.waits_of(StepId(s))) {
        if (w.value() < first || seen_[w.index()] == step_ + 1) continue;
        seen_[w.index()] = step_ + 1;
        before_.erase(w.value());
        open.push_back(w.value());
      }
    }
  }
  if (before_.empty()) return {};
  return wrong("law 3: step {} {}; it must wait for it", step_, before_.begin()->second);
}

/// Law 5: what is written is what the plan delivers.
Result<> MemoryCheck::cover() {
  if (expected_.delivers == nullptr) return {};
  std::set<std::pair<Rank, SlotId>> written;
  for (std::size_t b = 0; b < p_.buffers.size(); ++b) {
    const ProgramBuffer& buffer = p_.buffers[b];
    if (buffer.kind != BufferKind::target) continue;
    written.emplace(buffer.rank, buffer.slot);
    check::ByteMap<int> state;  // 1: written; 2: to be written
    users_[b].for_each([&](const Users& users, Index begin, Index end) {
      if (users.writer != kNoStep) state.update(begin, end, [](int& s, Index, Index) { s |= 1; });
    });
    if (const auto want = expected_.delivers->find({buffer.rank, buffer.slot});
        want != expected_.delivers->end())
      for (const Interval& i : want->second)
        state.update(i.begin(), i.end(), [](int& s, Index, Index) { s |= 2; });
    state.for_each([&](int s, Index begin, Index end) {
      if (s == 1 || s == 2)
        note(fmt::format("law 5: {} bytes [{}, {}) of {}, which the plan {}",
                         s == 1 ? "a step writes" : "no step writes", begin, end,
                         name(BufferId(static_cast<std::uint32_t>(b))),
                         s == 1 ? "does not deliver" : "delivers"));
    });
  }
  for (const auto& [tensor, ranges] : *expected_.delivers)
    if (!ranges.empty() && !written.contains(tensor) &&
        (p_.rank.value() < 0 || tensor.first == p_.rank))
      note(fmt::format("law 5: no step writes target tensor {} of rank {}, which the plan delivers",
                       tensor.second.value(), tensor.first.value()));
  if (!error_.empty()) return wrong("{}", error_);
  return {};
}

Result<> MemoryCheck::run() {
  RESHARD_TRY(size());
  seen_.resize(p_.steps.size());
  begun_.resize(p_.steps.size());
  exchange_before_.assign(p_.steps.size(), kNoStep);
  std::uint32_t last = kNoStep;
  for (std::uint32_t s = 0; s < p_.steps.size(); ++s)
    if (p_.steps[s].kind == ProgramStep::Kind::exchange)
      exchange_before_[s] = std::exchange(last, s);
  for (const ProgramStep& step : p_.steps) {
    before_.clear();
    check::for_each_access(p_, step, [&](const Access& a) { use(a); });
    if (!error_.empty()) return wrong("{}", error_);
    RESHARD_TRY(order());
    ++step_;
  }
  return cover();
}

}  // namespace

Result<> check_program(const Program& program, const ProgramExpectations& expected) {
  RESHARD_TRY(check_structure(program));
  return MemoryCheck(program, expected).run();
}

}  // namespace reshard
