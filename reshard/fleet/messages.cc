// SPDX-License-Identifier: Apache-2.0
// A message is a byte of protocol, a byte of kind, and its fields in order: numbers in 8 bytes,
// little-endian; texts and lists as their size and contents.
#include "reshard/fleet/messages.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace reshard::fleet {
namespace {

constexpr std::uint64_t kProtocol = 1;
constexpr std::uint64_t kMaxParticipants = 65536;

class Writer {
 public:
  explicit Writer(std::size_t kind) { number(kProtocol).number(kind); }
  template <class T>
  Writer& number(T value) {
    for (int i = 0; i < 8; ++i)
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff));
    return *this;
  }
  Writer& text(const std::string& text) {
    number(text.size());
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads fields; once one is missing or out of range, all are zero and good() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {
    good_ = number() == kProtocol;
  }
  std::uint64_t number() {
    if (!good_ || rest_.size() < 8) {
      good_ = false;
      return 0;
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8; ++i)
      value |= std::to_integer<std::uint64_t>(rest_[i]) << (8 * i);
    rest_ = rest_.subspan(8);
    return value;
  }
  std::uint64_t below(std::uint64_t end) {
    const std::uint64_t value = number();
    good_ = good_ && value < end;
    return good_ ? value : 0;
  }
  int small() { return static_cast<int>(below(std::uint64_t{1} << 31)); }
  std::int64_t version() { return static_cast<std::int64_t>(number()); }
  std::string text() {
    const std::uint64_t size = number();
    if (!good_ || size > rest_.size()) {
      good_ = false;
      return "";
    }
    std::string out(reinterpret_cast<const char*>(rest_.data()), static_cast<std::size_t>(size));
    rest_ = rest_.subspan(static_cast<std::size_t>(size));
    return out;
  }
  bool good() const { return good_; }
  /// Errors: a field was missing or out of range, or bytes are left.
  template <class T>
  Result<T> finish(T message) const {
    if (good_ && rest_.empty()) return message;
    return fail(Code::corrupt, "a message of a fleet that this release of reshard does not know");
  }

 private:
  std::span<const std::byte> rest_;
  bool good_ = true;
};

void put(Writer& out, const Action& a) {
  out.number(a.kind).number(a.version).number(a.round).number(a.epoch).number(a.rank);
  out.text(a.address).number(a.code).text(a.text).number(a.participants.size());
  for (const Participant& p : a.participants)
    out.text(p.unit).text(p.layout).number(p.first).number(p.size).number(p.is_source ? 1 : 0);
  out.number(a.holders.size());
  for (const std::string& each : a.holders) out.text(each);
}

Action take_action(Reader& in) {
  Action a;
  a.kind = static_cast<Action::Kind>(in.below(static_cast<std::uint64_t>(Action::Kind::drop) + 1));
  a.version = in.version();
  a.round = in.version();
  a.epoch = in.version();
  a.rank = in.small();
  a.address = in.text();
  a.code = static_cast<Code>(in.below(static_cast<std::uint64_t>(Code::aborted) + 1));
  a.text = in.text();
  for (std::uint64_t n = in.below(kMaxParticipants); n > 0 && in.good(); --n) {
    Participant p;
    p.unit = in.text();
    p.layout = in.text();
    p.first = in.small();
    p.size = in.small();
    p.is_source = in.below(2) == 1;
    a.participants.push_back(std::move(p));
  }
  for (std::uint64_t n = in.below(kMaxParticipants); n > 0 && in.good(); --n)
    a.holders.push_back(in.text());
  return a;
}

}  // namespace

std::vector<std::byte> encode(const MemberMessage& message) {
  Writer out(message.index());
  if (const auto* join = std::get_if<JoinRequest>(&message)) {
    out.text(join->unit).number(join->role).number(join->rank).number(join->size);
    out.text(join->layout).number(join->version).text(join->address);
  } else if (const auto* publish = std::get_if<PublishMessage>(&message)) {
    out.number(publish->version).number(publish->engines);
  } else if (const auto* report = std::get_if<ReportMessage>(&message)) {
    out.number(report->round).number(report->has ? 1 : 0).number(report->keeps);
    out.text(report->error);
  }
  return out.take();
}

std::vector<std::byte> encode(const ServerMessage& message) {
  Writer out(message.index());
  if (const auto* action = std::get_if<Action>(&message)) put(out, *action);
  return out.take();
}

Result<MemberMessage> parse_member_message(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const std::uint64_t kind = in.below(std::variant_size_v<MemberMessage>);
  MemberMessage out;
  if (kind == 0) {
    JoinRequest join;
    join.unit = in.text();
    join.role = static_cast<Role>(in.below(2));
    join.rank = in.small();
    join.size = in.small();
    join.layout = in.text();
    join.version = in.version();
    join.address = in.text();
    out = std::move(join);
  } else if (kind == 1) {
    out = ReadyMessage{};
  } else if (kind == 2) {
    PublishMessage publish;
    publish.version = in.version();
    publish.engines = in.small();
    out = publish;
  } else {
    ReportMessage report;
    report.round = in.version();
    report.has = in.below(2) == 1;
    report.keeps = in.version();
    report.error = in.text();
    out = std::move(report);
  }
  return in.finish(std::move(out));
}

Result<ServerMessage> parse_server_message(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const std::uint64_t kind = in.below(std::variant_size_v<ServerMessage>);
  ServerMessage out;
  if (kind == 1) out = take_action(in);
  return in.finish(std::move(out));
}

}  // namespace reshard::fleet
