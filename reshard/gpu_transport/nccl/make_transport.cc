// SPDX-License-Identifier: Apache-2.0
// How ranks meet in NCCL: each publishes why it cannot, if so, and rank 0 the id of the
// communicator, before anyone calls NCCL to join.
#include <fmt/format.h>

#include <cstring>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/kernel_image.h"
#include "reshard/gpu_transport/nccl/group.h"
#include "reshard/gpu_transport/nccl/transport.h"

namespace reshard::nccl {
namespace {

struct Card {
  char error[512] = {};
  UniqueId id;
};

Result<std::shared_ptr<const cuda::Device>> open_gpu(const TransportOptions& options) {
  if (options.gpu < 0)
    return fail(Code::invalid_argument, "it needs a GPU for each rank (TransportOptions::gpu)");
  const cuda::Driver* const driver = RESHARD_TRY(cuda::load_driver());
  // No kernel of reshard's runs here.
  return cuda::Device::open(*driver, options.gpu, {});
}

Result<> fill(Card& card, bool is_root, const Nccl* nccl,
              const Result<std::shared_ptr<const cuda::Device>>& gpu) {
  if (!gpu) return tl::unexpected(gpu.error());
  if (!is_root) return {};
  int status = kSuccess;
  RESHARD_TRY((*gpu)->call("ncclGetUniqueId", [&] {
    status = nccl->ncclGetUniqueId(&card.id);
    return 0;
  }));
  return check(*nccl, status, nullptr, "ncclGetUniqueId");
}

/// The card of rank 0. All ranks have the same cards, and so the same error.
Result<Card> meet(ControlPlane& control, Card mine, Deadline deadline) {
  const auto all = RESHARD_TRY(control.all_gather(std::as_bytes(std::span(&mine, 1)), deadline));
  Card first;
  for (std::size_t r = 0; r < all.size(); ++r) {
    Card card;
    if (all[r].size() != sizeof card)
      return fail(Code::corrupt, fmt::format("rank {} published {} bytes, {} expected", r,
                                             all[r].size(), sizeof card));
    std::memcpy(&card, all[r].data(), sizeof card);
    card.error[sizeof card.error - 1] = '\0';
    if (card.error[0] != '\0')
      return fail(Code::unsupported, fmt::format("rank {}: {}", r, card.error));
    if (r == 0) first = card;
  }
  return first;
}

Result<std::unique_ptr<Transport>> make(ControlPlane& control, const Nccl* nccl,
                                        const Result<std::shared_ptr<const cuda::Device>>& gpu,
                                        Deadline deadline, const GroupLimits& limits) {
  Card mine;
  if (const Result<> filled = fill(mine, control.rank() == Rank{0}, nccl, gpu); !filled)
    filled.error().message.copy(mine.error, sizeof mine.error - 1);
  const Card card = RESHARD_TRY(meet(control, mine, deadline));
  auto communicator = RESHARD_TRY(Communicator::make(*nccl, *gpu, card.id, control, deadline));
  auto queue = RESHARD_TRY(GroupQueue::make(std::move(communicator), *gpu, limits));
  auto own = RESHARD_TRY(cuda::Stream::make(*gpu));
  return transport_of(std::make_shared<NcclGroup>(control, *gpu, std::move(queue), std::move(own),
                                                  limits.segment_bytes));
}

}  // namespace

Result<std::unique_ptr<Transport>> make_transport(
    ControlPlane& control, const Nccl& nccl, const Result<std::shared_ptr<const cuda::Device>>& gpu,
    Deadline deadline, const GroupLimits& limits) {
  auto made = make(control, &nccl, gpu, deadline, limits);
  if (!made) return tl::unexpected(std::move(made).error().in("transport nccl"));
  return made;
}

Result<std::unique_ptr<Transport>> make_transport(ControlPlane& control,
                                                  const TransportOptions& options) {
  const Result<const Nccl*> nccl = load_nccl();
  Result<std::shared_ptr<const cuda::Device>> gpu =
      nccl ? open_gpu(options) : tl::unexpected(nccl.error());
  auto made = make(control, nccl ? *nccl : nullptr, gpu, options.deadline, {});
  if (!made) return tl::unexpected(std::move(made).error().in("transport nccl"));
  return made;
}

std::string library_version() {
  const Result<const Nccl*> nccl = load_nccl();
  return nccl ? name_of_version((*nccl)->version) : "";
}

std::string unavailable_reason() {
  if (const auto nccl = load_nccl(); !nccl) return nccl.error().message;
  if (const auto driver = cuda::load_driver(); !driver) return driver.error().message;
  return "";
}

}  // namespace reshard::nccl
