// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/nccl/library.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace reshard::nccl {
namespace {

constexpr std::chrono::milliseconds kNap{1};
constexpr std::chrono::seconds kEndTime{1};

/// What each rank publishes before NCCL is used: the PCI bus id of its device, and the unique id of
/// rank 0. A rank without a device publishes the reason, so that nobody waits for it.
struct Card {
  char error[256] = {};
  char host[256] = {};
  char device[64] = {};
  ncclUniqueId unique_id = {};
};

Result<> fill(Card& card, bool is_root) {
  int device = 0;
  RESHARD_TRY(to_result(cudaGetDevice(&device), "no GPU"));
  RESHARD_TRY(to_result(cudaDeviceGetPCIBusId(card.device, sizeof card.device, device),
                        "cudaDeviceGetPCIBusId"));
  gethostname(card.host, sizeof card.host - 1);
  if (is_root) RESHARD_TRY(to_result(ncclGetUniqueId(&card.unique_id), "ncclGetUniqueId"));
  return {};
}

/// The unique id of rank 0. All ranks have the same cards, and so the same error.
Result<ncclUniqueId> unique_id(ControlPlane& control, Deadline deadline) {
  Card mine;
  const Result<> filled = fill(mine, control.rank() == Rank{0});
  if (!filled) filled.error().message.copy(mine.error, sizeof mine.error - 1);
  const auto all = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(&mine, 1)), deadline));
  std::vector<Card> cards(all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != sizeof(Card))
      return fail(Code::corrupt,
                  fmt::format("transport nccl: rank {} published {} bytes, {} expected", r,
                              all[r].size(), sizeof(Card)));
    std::memcpy(&cards[r], all[r].data(), sizeof(Card));
    Card& card = cards[r];
    card.error[sizeof card.error - 1] = card.host[sizeof card.host - 1] = '\0';
    card.device[sizeof card.device - 1] = '\0';
    if (card.error[0] != '\0')
      return fail(Code::unsupported, fmt::format("transport nccl: rank {}: {}", r, card.error));
    for (std::size_t other = 0; other < r; ++other)
      if (std::strcmp(cards[other].host, card.host) == 0 &&
          std::strcmp(cards[other].device, card.device) == 0)
        return fail(Code::unsupported,
                    fmt::format("transport nccl: ranks {} and {} have the same GPU, {} of {}; each "
                                "rank needs one of its own",
                                other, r, card.device, card.host));
  }
  return cards[0].unique_id;
}

}  // namespace

Result<> to_result(ncclResult_t code, std::string_view what) {
  if (code == ncclSuccess || code == ncclInProgress) return {};
  return fail(Code::aborted, fmt::format("nccl: {}: {}", what, ncclGetErrorString(code)));
}

Result<> to_result(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return {};
  return fail(Code::aborted, fmt::format("cuda: {}: {}", what, cudaGetErrorString(code)));
}

Result<std::unique_ptr<Link>> Link::make(ControlPlane& control, Deadline deadline) {
  const ncclUniqueId id = RESHARD_TRY(unique_id(control, deadline));
  std::unique_ptr<Link> link(new Link);
  RESHARD_TRY(to_result(cudaStreamCreateWithFlags(&link->stream_, cudaStreamNonBlocking),
                        "cudaStreamCreateWithFlags"));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  RESHARD_TRY(to_result(
      ncclCommInitRankConfig(&link->comm_, control.size(), id, control.rank().value(), &config),
      "ncclCommInitRankConfig"));
  while (!RESHARD_TRY(link->ready())) {
    RESHARD_TRY(control.status());
    if (deadline.expired())
      return fail(Code::deadline,
                  "transport nccl: not all ranks joined the communicator before the deadline");
    std::this_thread::sleep_for(kNap);
  }
  return link;
}

Link::~Link() {
  end(false);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Result<bool> Link::ready() const {
  ncclResult_t state = ncclSuccess;
  RESHARD_TRY(to_result(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError"));
  RESHARD_TRY(to_result(state, "a message"));
  return state == ncclSuccess;
}

void Link::end(bool cleanly) {
  if (comm_ == nullptr) return;
  const Deadline deadline = Deadline::after(kEndTime);
  bool ended = cleanly && to_result(ncclCommFinalize(comm_), "ncclCommFinalize").has_value();
  while (ended) {
    const Result<bool> done = ready();
    ended = done.has_value();
    if (!done || *done) break;
    if (deadline.expired()) ended = false;
    std::this_thread::sleep_for(kNap);
  }
  if (ended) {
    ncclCommDestroy(comm_);
  } else {
    ncclCommAbort(comm_);
  }
  comm_ = nullptr;
  // Operations on the stream end with the communicator; afterwards NCCL uses no memory.
  cudaStreamSynchronize(stream_);
}

}  // namespace reshard::nccl
