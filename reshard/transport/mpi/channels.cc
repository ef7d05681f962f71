// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/mpi/channels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "reshard/transport/group.h"
#include "reshard/transport/mpi/runtime.h"

namespace reshard::mpi {
namespace {

/// The data that each rank publishes before a group is made.
struct Card {
  std::array<char, 32> library{};
  std::int32_t world_rank = -1;
  std::int32_t world_size = 0;
  std::uint64_t last_group = 0;  ///< the largest number of any group of this process.
  std::array<char, 256> error{};
};

struct Store {
  std::mutex mutex;
  std::uint64_t last_group = 0;
  std::map<std::vector<int>, Channels> unused;
};
Store& store() {
  static Store* const s = new Store;
  return *s;
}

template <std::size_t N>
void write(std::array<char, N>& to, std::string_view text) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), to.begin());
}
template <std::size_t N>
std::string_view text_of(const std::array<char, N>& from) {
  return {from.data(), strnlen(from.data(), N)};
}

/// Starts MPI, unless this process has no launcher and would become a world of its own.
Result<> start_in_world(int group_size) {
  int started = 0;
  MPI_Initialized(&started);
  const std::optional<Launched> launch = RESHARD_TRY(launched());
  if (started == 0 && group_size > 1 && (!launch || launch->launcher == "torchrun")) {
    return fail(
        Code::unsupported,
        "transport mpi: this process was not started by mpirun or srun; use one of them, or "
        "another transport");
  }
  return initialize();
}

Card my_card(int group_size) {
  Card card;
  write(card.library, library_version());
  Result<> started = start_in_world(group_size);
  if (started) {
    int rank = -1, size = 0;
    started = to_result(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    if (started) started = to_result(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    card.world_rank = rank;
    card.world_size = size;
  }
  if (!started) write(card.error, started.error().message);
  const std::scoped_lock lock(store().mutex);
  card.last_group = store().last_group;
  return card;
}

Result<std::vector<Card>> exchange_cards(ControlPlane& control, Deadline deadline) {
  const Card mine = my_card(control.size());
  const auto all = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(&mine, 1)), deadline));
  std::vector<Card> cards(all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != sizeof(Card)) {
      return fail(Code::corrupt,
                  fmt::format("transport mpi: rank {} published {} bytes, {} expected", r,
                              all[r].size(), sizeof(Card)));
    }
    std::memcpy(&cards[r], all[r].data(), sizeof(Card));
  }
  return cards;
}

/// The ranks of the members in MPI_COMM_WORLD. All ranks have the same cards, and so the same
/// error.
Result<std::vector<int>> check_cards(const std::vector<Card>& cards) {
  std::vector<int> members;
  for (std::size_t r = 0; r < cards.size(); ++r) {
    const Card& card = cards[r];
    if (card.error[0] != '\0')
      return fail(Code::unsupported, fmt::format("rank {}: {}", r, text_of(card.error)));
    if (text_of(card.library) != text_of(cards[0].library) ||
        card.world_size != cards[0].world_size) {
      return fail(
          Code::unsupported,
          fmt::format("transport mpi: rank {} is one of {} processes of {}, rank 0 one of {} "
                      "of {}; all must be started by one mpirun or srun",
                      r, card.world_size, text_of(card.library), cards[0].world_size,
                      text_of(cards[0].library)));
    }
    const auto twin = std::ranges::find(members, card.world_rank);
    if (card.world_rank < 0 || card.world_rank >= card.world_size || twin != members.end()) {
      return fail(
          Code::unsupported,
          fmt::format("transport mpi: rank {} is process {} of its launcher, and so is rank "
                      "{}; all must be different processes of one mpirun or srun",
                      r, card.world_rank, twin - members.begin()));
    }
    members.push_back(card.world_rank);
  }
  return members;
}

Result<Channels> new_channels(const std::vector<int>& members) {
  constexpr int kTag = 1964;  // Unlikely to be used by the program at this moment.
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  RESHARD_TRY(to_result(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group"));
  Result<> made =
      to_result(MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &group),
                "MPI_Group_incl");
  Channels channels;
  for (MPI_Comm* comm : {&channels.frames, &channels.bulks}) {
    if (made)
      made = to_result(MPI_Comm_create_group(MPI_COMM_WORLD, group, kTag, comm),
                       "MPI_Comm_create_group");
    if (made)
      made =
          to_result(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  if (group != MPI_GROUP_NULL) MPI_Group_free(&group);
  MPI_Group_free(&world);
  RESHARD_TRY(std::move(made));
  channels.members = members;
  return channels;
}

/// Takes unused channels of these processes out of the store.
std::optional<Channels> unused_channels(const std::vector<int>& members) {
  const std::scoped_lock lock(store().mutex);
  const auto found = store().unused.find(members);
  if (found == store().unused.end()) return std::nullopt;
  Channels channels = std::move(found->second);
  store().unused.erase(found);
  return channels;
}

/// True if every rank has these channels.
Result<bool> all_have(ControlPlane& control, const std::optional<Channels>& channels,
                      Deadline deadline) {
  const std::uint64_t mine = channels ? channels->made : 0;
  const auto all = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(&mine, 1)), deadline));
  return mine != 0 && std::ranges::all_of(all, [&](const std::vector<std::byte>& theirs) {
           return std::ranges::equal(theirs, std::as_bytes(std::span(&mine, 1)));
         });
}

}  // namespace

Result<Channels> take_channels(ControlPlane& control, Deadline deadline) {
  const std::vector<Card> cards = RESHARD_TRY(exchange_cards(control, deadline));
  const std::vector<int> members = RESHARD_TRY(check_cards(cards));
  std::uint64_t group = 0;
  for (const Card& card : cards) group = std::max(group, card.last_group);
  ++group;
  {
    const std::scoped_lock lock(store().mutex);
    store().last_group = std::max(store().last_group, group);
  }
  std::optional<Channels> channels = unused_channels(members);
  if (!RESHARD_TRY(all_have(control, channels, deadline))) {
    channels = RESHARD_TRY(new_channels(members));
    channels->made = group;
  }
  channels->group = group;
  channels->whole_world = std::cmp_equal(members.size(), cards[0].world_size);
  return *std::move(channels);
}

void give_back_channels(Channels channels) {
  const std::scoped_lock lock(store().mutex);
  Channels& unused = store().unused[channels.members];
  if (channels.made >= unused.made) unused = std::move(channels);
}

void discard_late_frames() {
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(100));
  const std::scoped_lock lock(store().mutex);
  std::vector<std::byte> frame;
  for (auto& [members, channels] : store().unused) {
    for (int found = 1; found != 0 && !deadline.expired();) {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      MPI_Request request = MPI_REQUEST_NULL;
      int bytes = 0, done = 0;
      if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, channels.frames, &found, &message, &status) !=
              MPI_SUCCESS ||
          found == 0 || MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS)
        break;
      frame.resize(static_cast<std::size_t>(std::max(bytes, 1)));
      if (MPI_Imrecv(frame.data(), bytes, MPI_BYTE, &message, &request) != MPI_SUCCESS) return;
      while (done == 0 && !deadline.expired()) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      // MPI may write into the buffer until the process ends.
      if (done == 0) {
        (void)new std::vector<std::byte>(std::move(frame));
        return;
      }
    }
  }
}

int largest_tag(MPI_Comm comm) {
  constexpr int kPromised = 32767;
  void* value = nullptr;
  int found = 0;
  if (MPI_Comm_get_attr(comm, MPI_TAG_UB, &value, &found) != MPI_SUCCESS || found == 0)
    return kPromised;
  return *static_cast<int*>(value);
}

}  // namespace reshard::mpi
