// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/coordinator_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "reshard/transport/checks.h"

namespace reshard::tcp {
namespace {

constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kMaxRanks = 65536;
constexpr std::size_t kMaxGatherBytes = std::size_t{64} << 20;
/// Most memory that is kept for the next collective: per contribution, and for all. Bytes.
constexpr std::size_t kMaxGiven = 4096, kMaxBody = std::size_t{2} << 20;

Frame failed(std::uint64_t id, Code code, std::string text) {
  return {Kind::failed, id, static_cast<std::uint64_t>(code), 0, std::move(text), {}};
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

std::int64_t difference(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

/// The settings of a join frame: alternating names and values.
std::vector<std::string_view> settings_of(std::string_view agreement) {
  std::vector<std::string_view> out;
  agreement.remove_prefix(std::min(agreement.size(), kDigestBytes));
  for (auto end = agreement.find('\0'); end != std::string_view::npos; end = agreement.find('\0')) {
    out.push_back(agreement.substr(0, end));
    agreement.remove_prefix(end + 1);
  }
  if (out.size() % 2 != 0) out.pop_back();
  return out;
}

std::optional<std::string_view> value_of(const std::vector<std::string_view>& settings,
                                         std::string_view name) {
  for (std::size_t i = 0; i < settings.size(); i += 2)
    if (settings[i] == name) return settings[i + 1];
  return std::nullopt;
}

/// A message about the first setting in which rank `r` differs from the rank that reads it.
std::optional<std::string> differing_setting(std::size_t r, std::string_view its,
                                             std::string_view mine) {
  const auto theirs = settings_of(its), own = settings_of(mine);
  for (std::size_t i = 0; i < own.size(); i += 2) {
    const auto value = value_of(theirs, own[i]);
    if (!value)
      return fmt::format("join: rank {} does not know {}, which this program sets to {}", r, own[i],
                         own[i + 1]);
    if (*value != own[i + 1])
      return fmt::format("join: rank {} has {} {}, this program {}; they must be equal", r, own[i],
                         *value, own[i + 1]);
  }
  for (std::size_t i = 0; i < theirs.size(); i += 2)
    if (!value_of(own, theirs[i]))
      return fmt::format("join: rank {} has {} {}, which this program does not know", r, theirs[i],
                         theirs[i + 1]);
  return std::nullopt;
}

Rank rank_at(std::size_t index) { return Rank(static_cast<Rank::rep>(index)); }

}  // namespace

template <class Predicate>
std::string CoordinatorState::ranks_where(Predicate in) const {
  return list_ranks(members_.size(), [&](std::size_t r) { return in(members_[r]); });
}

CoordinatorState::CoordinatorState(int size, Out out)
    : members_(static_cast<std::size_t>(size)), out_(std::move(out)) {}

std::optional<Rank> CoordinatorState::seat(const Frame& join, Frame& refusal) {
  const auto refuse = [&](std::string text) {
    refusal = failed(join.id, Code::invalid_argument, std::move(text));
    return std::nullopt;
  };
  if (join.kind != Kind::join || join.bytes.size() < kDigestBytes || join.b > kMaxRanks ||
      join.a >= join.b)
    return refuse("join: not a request to join a group");
  if (join.a >= members_.size()) {
    const std::string_view its(reinterpret_cast<const char*>(join.bytes.data()), join.bytes.size());
    if (auto wrong =
            members_[0].seated ? differing_setting(0, members_[0].agreement, its) : std::nullopt)
      return refuse(*std::move(wrong));
    return refuse(fmt::format("join: rank {} joins a group of {}, rank 0 one of {}", join.a, join.b,
                              members_.size()));
  }
  const Rank rank = rank_at(static_cast<std::size_t>(join.a));
  Member& member = at(rank);
  if (member.seated || started_ || refused_)
    return refuse(fmt::format("join: rank {} is taken: another process has joined as it", join.a));
  member = {};
  member.seated = true;
  member.waits = Waits::join;
  member.id = join.id;
  member.size = join.b;
  member.agreement.assign(reinterpret_cast<const char*>(join.bytes.data()), join.bytes.size());
  member.excerpt = join.text;
  ++num_seated_;
  return rank;
}

void CoordinatorState::start_if_complete() {
  if (started_ || refused_) return;
  // If the sizes differ, nobody knows how many ranks will come; the smallest size counts.
  std::uint64_t least = members_.size();
  for (const Member& m : members_)
    if (m.seated) least = std::min(least, m.size);
  if (num_seated_ < least || !members_[0].seated) return;
  const std::size_t differs = first_to_differ();
  refused_ = differs > 0;
  started_ = !refused_;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (!members_[r].seated) continue;
    if (refused_) {
      answer(rank_at(r), Code::invalid_argument, disagreement(r, differs).value_or(""));
    } else {
      answer_done(rank_at(r));
    }
  }
}

/// The first rank that has joined and differs from rank 0, or 0.
std::size_t CoordinatorState::first_to_differ() const {
  const Member& zero = members_[0];
  for (std::size_t r = 1; zero.seated && r < members_.size(); ++r) {
    const Member& m = members_[r];
    if (m.seated && (m.size != zero.size || m.agreement != zero.agreement)) return r;
  }
  return 0;
}

/// The error message for rank `reader` if rank `differs` is the first that differs from rank 0;
/// none if `differs` is 0.
std::optional<std::string> CoordinatorState::disagreement(std::size_t reader,
                                                          std::size_t differs) const {
  if (differs == 0) return std::nullopt;
  const Member &zero = members_[0], &other = members_[differs], &me = members_[reader];
  // A rank that differs from rank 0 reads of rank 0, the others read of the rank that differs.
  const bool odd = me.size != zero.size || me.agreement != zero.agreement;
  const auto setting = odd ? differing_setting(0, zero.agreement, me.agreement)
                           : differing_setting(differs, other.agreement, me.agreement);
  if (setting) return setting;
  if (other.size != zero.size) {
    return fmt::format("join: rank {} joins a group of {}, rank 0 one of {}", differs, other.size,
                       zero.size);
  }
  return fmt::format(
      "join: rank {} has the agreement {}, rank 0 has {}; they must be equal on every "
      "rank",
      differs, other.excerpt, zero.excerpt);
}

bool CoordinatorState::on_frame(Rank from, Frame&& frame) {
  Member& me = at(from);
  const Kind kind = frame.kind;
  if (!me.gone && !(kind == Kind::bye && started_) && take(from, frame)) return true;
  if (kind == Kind::bye && started_ && !me.gone) {
    lose(from, false);
  } else {
    on_lost(from);
  }
  return false;
}

bool CoordinatorState::take(Rank from, Frame& frame) {
  Member& me = at(from);
  if (frame.kind == Kind::leave) {
    const bool joining = me.waits == Waits::join;
    leave(from, frame.id);
    return !joining;
  }
  if (!started_) return false;
  switch (frame.kind) {
    case Kind::meet:
      if (me.waits != Waits::no) return false;
      meet(from, frame);
      return true;
    case Kind::quiesce:
      // An abort ends a collective without an answer, but never a quiesce.
      if (me.waits == Waits::quiesce || (me.waits == Waits::meet && !aborted_)) return false;
      quiesce(from, frame.id);
      return true;
    case Kind::abort:
      abort(fmt::format("rank {} aborted: {}", from.value(), frame.text));
      return true;
    case Kind::tally:
      me.tally = static_cast<std::int64_t>(frame.a);
      tallies_due_ = true;
      return true;
    default: return false;
  }
}

void CoordinatorState::on_lost(Rank rank) {
  Member& me = at(rank);
  if (started_) {
    if (!me.gone) lose(rank, true);
  } else if (me.seated) {
    --num_seated_;
    me = {};
  }
}

void CoordinatorState::meet(Rank from, Frame& frame) {
  Member& me = at(from);
  me.waits = Waits::meet;
  me.id = frame.id;
  if (aborted_) return;
  if (num_here_ != 0 && frame.text != what_) {
    answer(from, Code::invalid_argument,
           fmt::format(
               "rank {} calls {} while others are in {}; every rank must make collective calls "
               "in the same order",
               from.value(), frame.text, what_));
    return;
  }
  const std::size_t bytes = 8 + frame.bytes.size();
  if (bytes > kMaxGatherBytes - given_bytes_) {
    answer(from, Code::invalid_argument,
           fmt::format("{}: rank {} gives {} bytes, which exceeds {} MiB over all ranks",
                       frame.text, from.value(), frame.bytes.size(), kMaxGatherBytes >> 20));
    return;
  }
  what_ = frame.text;
  me.given.swap(frame.bytes);
  me.here = true;
  ++num_here_;
  given_bytes_ += bytes;
  if (num_here_ == members_.size()) return complete();
  fail_if_impossible();
}

void CoordinatorState::complete() {
  const FrameBody body = what_ == kBarrier ? nullptr : all_given();
  num_here_ = given_bytes_ = 0;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    members_[r].here = false;
    if (!members_[r].gone) answer_done(rank_at(r), body);
  }
}

/// The contributions of all ranks, in the memory of the last answer if that has been sent.
FrameBody CoordinatorState::all_given() {
  if (body_ == nullptr || body_.use_count() > 1 || body_->capacity() > kMaxBody)
    body_ = std::make_shared<std::vector<std::byte>>();
  body_->clear();
  body_->reserve(given_bytes_);
  for (Member& m : members_) {
    append_part(*body_, m.given);
    forget(m.given, kMaxGiven);
  }
  return body_;
}

void CoordinatorState::fail_if_impossible() {
  const auto left = [](const Member& m) { return m.gone && !m.here; };
  if (num_here_ == 0 || aborted_ || std::ranges::none_of(members_, left)) return;
  const std::string text = fmt::format("{}: {} closed the control plane", what_, ranks_where(left));
  for (std::size_t r = 0; r < members_.size(); ++r) {
    Member& m = members_[r];
    if (m.here && !m.gone) answer(rank_at(r), Code::aborted, text);
    m.here = false;
    m.given.clear();
  }
  num_here_ = given_bytes_ = 0;
}

void CoordinatorState::quiesce(Rank from, std::uint64_t id) {
  Member& me = at(from);
  me.waits = Waits::quiesce;
  me.id = id;
  ++me.quiesced;
  answer_quiesced();
}

void CoordinatorState::answer_quiesced() {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const Member& m : members_)
    if (!m.gone) least = std::min(least, m.quiesced);
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const Member& m = members_[r];
    if (!m.gone && m.waits == Waits::quiesce && m.quiesced <= least) answer_done(rank_at(r));
  }
}

void CoordinatorState::leave(Rank from, std::uint64_t id) {
  Member& me = at(from);
  if (me.waits == Waits::no || me.id != id) return;  // Answered before.
  const auto late = [](std::string_view what, const std::string& who) {
    return fmt::format("{}: {} did not arrive before the deadline", what, who);
  };
  if (me.waits == Waits::join) {
    const auto wrong = disagreement(from.index(), first_to_differ());
    const auto absent = [](const Member& m) { return !m.seated; };
    answer(from, wrong ? Code::invalid_argument : Code::deadline,
           wrong.value_or(late("join", ranks_where(absent))));
  } else if (me.waits == Waits::meet) {
    const auto absent = [](const Member& m) { return !m.here; };
    std::string text = late(what_, ranks_where(absent));
    if (me.here) {
      me.here = false;
      --num_here_;
      given_bytes_ -= 8 + me.given.size();
      me.given.clear();
    }
    answer(from, Code::deadline, std::move(text));
  } else {
    const auto absent = [&](const Member& m) { return !m.gone && m.quiesced < me.quiesced; };
    std::string text =
        late("quiesce", ranks_where(absent)) + " and may still use this rank's memory";
    --me.quiesced;
    answer(from, Code::deadline, std::move(text));
  }
}

void CoordinatorState::abort(std::string text) {
  if (std::exchange(aborted_, true)) return;
  to_all({Kind::aborted, 0, 0, 0, std::move(text), {}});
}

void CoordinatorState::lose(Rank rank, bool died) {
  Member& me = at(rank);
  me.gone = true;
  me.waits = Waits::no;
  ++num_gone_;
  to_all({Kind::lost, 0, static_cast<std::uint64_t>(rank.value()), died ? 1U : 0U, "", {}});
  if (died) abort(fmt::format("rank {} died (its connection was lost)", rank.value()));
  fail_if_impossible();
  answer_quiesced();
}

void CoordinatorState::send_tallies(const std::function<bool(Rank)>& ready) {
  if (!std::exchange(tallies_due_, false)) return;
  std::int64_t total = 0;
  for (const Member& m : members_) total = sum(total, m.tally);
  for (std::size_t r = 0; r < members_.size(); ++r) {
    Member& m = members_[r];
    const std::int64_t others = difference(total, m.tally);
    if (m.gone || others == m.sent_tally) continue;
    if (!ready(rank_at(r))) {
      tallies_due_ = true;
      continue;
    }
    m.sent_tally = others;
    out_(rank_at(r), {Kind::tally, 0, static_cast<std::uint64_t>(others), 0, "", {}}, nullptr);
  }
}

bool CoordinatorState::finished() const {
  return refused_ || (started_ && num_gone_ == members_.size());
}

void CoordinatorState::answer(Rank to, Code code, std::string text) {
  Member& member = at(to);
  member.waits = Waits::no;
  out_(to, failed(member.id, code, std::move(text)), nullptr);
}

void CoordinatorState::answer_done(Rank to, FrameBody body) {
  Member& member = at(to);
  member.waits = Waits::no;
  out_(to, {Kind::done, member.id, 0, 0, "", {}}, std::move(body));
}

void CoordinatorState::to_all(const Frame& frame) {
  for (std::size_t r = 0; r < members_.size(); ++r)
    if (!members_[r].gone) out_(rank_at(r), frame, nullptr);
}

}  // namespace reshard::tcp
