// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/shm/peers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <type_traits>

#include "reshard/base/hash.h"
#include "reshard/memory/shared_arena.h"
#include "reshard/transport/shm/fd_passing.h"
#include "reshard/transport/shm/process_reads.h"

namespace reshard::shm {
namespace {

constexpr std::uint64_t kCardMagic = 0x31304d4853445243ULL;

/// The data that each rank publishes about itself.
struct Card {
  std::uint64_t magic;
  std::uint64_t boot;
  std::uint64_t pid_namespace, network_namespace;
  std::uint64_t nonce;
  std::uint64_t probe;  ///< address of a copy of the nonce in private memory.
  std::int32_t pid;
  std::int32_t segment_file, arena_file;
  std::uint32_t methods;
  char host[64];
  char trouble[160];
};
static_assert(std::is_trivially_copyable_v<Card>);

void put_text(char* to, std::size_t room, std::string_view text) {
  std::memcpy(to, text.data(), std::min(room - 1, text.size()));
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::uint64_t boot_id() {
  std::string line;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, line);
  return hash64(line);
}

/// The number of this process's namespace of a kind ("pid", "net"), or 0 if it is not known.
std::uint64_t own_namespace(const char* kind) {
  struct stat s{};
  return stat(fmt::format("/proc/self/ns/{}", kind).c_str(), &s) == 0 ? s.st_ino : 0;
}

FileDescriptor open_of(pid_t pid, int fd) {
  return FileDescriptor(::open(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), O_RDWR | O_CLOEXEC));
}

/// The objects that this rank contributes to connect_peers().
struct Mine {
  Card card{};
  Segment segment;
  AllowedAccess allowed;
  std::uint64_t probe = 0;
  int rings = 0;  ///< per segment.
  FdPassing passer;
};

Result<> prepare(Mine& mine, Rank rank) {
  Card& card = mine.card;
  mine.allowed = RESHARD_TRY(allowed_access());
  if (getrandom(&card.nonce, sizeof card.nonce, 0) != sizeof card.nonce)
    return fail(Code::io, "getrandom failed");
  let_peers_read();
  mine.segment = RESHARD_TRY(Segment::create(mine.rings, rank, card.nonce));
  card.arena_file = RESHARD_TRY(shared_arena::file());
  card.segment_file = mine.segment.fd();
  mine.probe = card.nonce;
  card.probe = reinterpret_cast<std::uint64_t>(&mine.probe);
  card.methods = mine.allowed.methods;
  RESHARD_TRY(mine.passer.listen(card.nonce));
  return {};
}

Card describe(const Mine& mine, const Result<>& prepared) {
  Card card = mine.card;
  card.magic = kCardMagic;
  card.boot = boot_id();
  card.pid_namespace = own_namespace("pid");
  card.network_namespace = own_namespace("net");
  card.pid = getpid();
  gethostname(card.host, sizeof card.host - 1);
  if (!prepared) put_text(card.trouble, sizeof card.trouble, prepared.error().message);
  return card;
}

Result<std::vector<Card>> exchange(ControlPlane& control, const Card& mine, Deadline deadline) {
  const auto given = RESHARD_TRY(control.all_gather(bytes_of(mine), deadline));
  std::vector<Card> cards(given.size());
  for (std::size_t r = 0; r < given.size(); ++r) {
    if (given[r].size() != sizeof(Card))
      return fail(Code::corrupt, fmt::format("rank {} has another version of shm", r));
    std::memcpy(&cards[r], given[r].data(), sizeof(Card));
    Card& card = cards[r];
    card.host[sizeof card.host - 1] = card.trouble[sizeof card.trouble - 1] = '\0';
    if (card.magic != kCardMagic)
      return fail(Code::corrupt, fmt::format("rank {} has another version of shm", r));
    if (card.trouble[0] != '\0')
      return fail(Code::unsupported, fmt::format("rank {}: {}", r, card.trouble));
  }
  for (std::size_t r = 1; r < cards.size(); ++r) {
    if (cards[r].boot != cards[0].boot)
      return fail(Code::unsupported,
                  fmt::format("rank {} is on another host ({}) than rank 0 ({}); shm connects "
                              "processes of one host",
                              r, cards[r].host, cards[0].host));
  }
  return cards;
}

/// Opens the peer's files through /proc; false if that is not permitted.
bool take_from_proc(const Card& card, Peer& peer, int rings, Rank rank) {
  FileDescriptor file = open_of(card.pid, card.segment_file);
  peer.arena = open_of(card.pid, card.arena_file);
  if (!file || !peer.arena) return false;
  auto segment = Segment::map(std::move(file), rings, rank, card.nonce);
  if (!segment) return false;
  peer.segment = std::move(*segment);
  return true;
}

/// The methods that work from this rank to the peer's memory.
std::uint8_t probe(const Card& mine, const Card& card, const Peer& peer) {
  std::uint8_t reach = 0;
  const std::uint32_t both = mine.methods & card.methods;
  const int seals = fcntl(peer.arena.get(), F_GET_SEALS);
  if ((both & kMapped) != 0 && seals >= 0 && (seals & F_SEAL_SHRINK) != 0) reach |= kMapped;
  if ((both & kReadv) != 0 && peer.pid != 0 && reads_memory_of(peer.pid, card.probe, card.nonce))
    reach |= kReadv;
  return reach;
}

/// How agree() marks that a rank has an error, and which.
constexpr std::byte kFine{0}, kUnsupported{1}, kAborted{2};

/// Gathers one byte per peer from every rank, or the first error of any rank: `aborted`, or
/// `unsupported` for all others.
Result<std::vector<std::vector<std::byte>>> agree(ControlPlane& control, const Result<>& outcome,
                                                  std::vector<std::byte> mine, Deadline deadline) {
  std::byte mark = kFine;
  if (!outcome) {
    mark = outcome.error().code == Code::aborted ? kAborted : kUnsupported;
    const auto text = std::as_bytes(std::span(outcome.error().message));
    mine.assign(text.begin(), text.end());
  }
  mine.insert(mine.begin(), mark);
  auto all = RESHARD_TRY(control.all_gather(mine, deadline));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].empty() && (all[r][0] == kUnsupported || all[r][0] == kAborted)) {
      const auto* text = reinterpret_cast<const char*>(all[r].data()) + 1;
      return fail(all[r][0] == kAborted ? Code::aborted : Code::unsupported,
                  fmt::format("rank {}: {}", r, std::string_view(text, all[r].size() - 1)));
    }
    if (all[r].size() != all.size() + 1)
      return fail(Code::corrupt, fmt::format("rank {} has another version of shm", r));
    all[r].erase(all[r].begin());
  }
  return all;
}

/// Exchanges files over sockets with the peers that /proc did not give.
Result<> take_passed(Mine& mine, const std::vector<Card>& cards, std::vector<Peer>& peers,
                     const std::vector<std::vector<std::byte>>& asked, Rank rank,
                     Deadline deadline) {
  int expected = 0;
  for (const auto& of : asked) expected += of[rank.index()] != std::byte{0};
  RESHARD_TRY(mine.passer.serve(expected, mine.segment.fd(), mine.card.arena_file, deadline));
  for (std::size_t r = 0; r < peers.size(); ++r) {
    if (asked[rank.index()][r] == std::byte{0}) continue;
    const Rank from(static_cast<int>(r));
    PassedFiles files = RESHARD_TRY(mine.passer.take(from, deadline));
    peers[r].segment =
        RESHARD_TRY(Segment::map(std::move(files.segment), mine.rings, from, cards[r].nonce));
    peers[r].arena = std::move(files.arena);
  }
  return {};
}

}  // namespace

Result<AllowedAccess> allowed_access() {
  const char* set = std::getenv("RESHARD_SHM");
  if (set == nullptr) return AllowedAccess{};
  AllowedAccess allowed{.methods = 0};
  for (std::string_view left(set); !left.empty();) {
    const std::string_view word = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), word.size() + 1));
    if (word == "mapped") {
      allowed.methods |= kMapped;
    } else if (word == "readv") {
      allowed.methods |= kReadv;
    } else if (word == "passed") {
      allowed.through_proc = false;
    } else if (word != "ring") {
      return fail(
          Code::invalid_argument,
          fmt::format("RESHARD_SHM has \"{}\"; known are mapped, readv, ring, passed", word));
    }
  }
  return allowed;
}

Result<Peers> connect_peers(ControlPlane& control, Deadline deadline, Mail mail) {
  const Rank rank = control.rank();
  Mine mine;
  mine.rings = mail == Mail::rings ? control.size() : 1;
  const Result<> prepared = prepare(mine, rank);
  mine.card = describe(mine, prepared);
  const std::vector<Card> cards = RESHARD_TRY(exchange(control, mine.card, deadline));

  Peers out;
  out.peers.resize(cards.size());
  std::vector<std::byte> asks(cards.size());
  Result<> taken;
  for (std::size_t r = 0; r < cards.size(); ++r) {
    const Rank from(static_cast<int>(r));
    Peer& peer = out.peers[r];
    const bool visible = cards[r].pid_namespace == mine.card.pid_namespace;
    out.group = mix64(out.group + cards[r].nonce);
    if (visible) peer.pid = cards[r].pid;
    if (from == rank ||
        (visible && mine.allowed.through_proc && take_from_proc(cards[r], peer, mine.rings, from)))
      continue;
    asks[r] = std::byte{1};
    const bool same_network = cards[r].network_namespace == mine.card.network_namespace &&
                              mine.card.network_namespace != 0;
    const Result<> asked = mine.passer.ask(from, cards[r].nonce, same_network);
    if (!asked && taken) taken = asked;
  }
  const auto asked = RESHARD_TRY(agree(control, taken, asks, deadline));
  taken = take_passed(mine, cards, out.peers, asked, rank, deadline);

  std::vector<std::byte> reach(cards.size());
  for (std::size_t r = 0; taken && r < cards.size(); ++r) {
    Peer& peer = out.peers[r];
    if (Rank(static_cast<int>(r)) == rank) continue;
    peer.reach = probe(mine.card, cards[r], peer);
    reach[r] = std::byte{peer.reach};
    if (peer.pid != 0 && peer.pid != getpid())
      peer.pidfd = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  }
  const auto reaches = RESHARD_TRY(agree(control, taken, reach, deadline));
  for (std::size_t r = 0; r < cards.size(); ++r)
    out.peers[r].reached_by = std::to_integer<std::uint8_t>(reaches[r][rank.index()]);
  out.peers[rank.index()].segment = std::move(mine.segment);
  for (Peer& peer : out.peers) peer.segment.close_file();
  return out;
}

std::string unsupported_reason() {
  const FileDescriptor file(memfd_create("reshard-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return fmt::format("memfd_create failed: {}", std::strerror(errno));
  return "";
}

}  // namespace reshard::shm
