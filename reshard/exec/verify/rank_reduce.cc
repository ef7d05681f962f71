// SPDX-License-Identifier: Apache-2.0
// A binomial tree: the parent of a rank is the rank without its lowest set bit, so the children of
// rank r are r + 2^k for 2^k below that bit. Values go up to rank 0 and the result comes down. One
// message id serves every reduction: a rank sends up again only after the result came down, and
// down again only after every child has sent up.
#include "reshard/exec/verify/rank_reduce.h"

#include <algorithm>
#include <vector>

namespace reshard::verify {
namespace {

std::vector<Rank> children_of(int rank, int size) {
  std::vector<Rank> children;
  const int own_bit = rank == 0 ? size : rank & -rank;
  for (int bit = 1; bit < own_bit && rank + bit < size; bit *= 2) children.emplace_back(rank + bit);
  return children;
}

Result<> exchange(Transport& transport, std::span<const Send> sends, std::span<const Recv> recvs,
                  Deadline deadline) {
  const auto event = RESHARD_TRY(transport.exchange(sends, recvs));
  return event->wait(deadline);
}

void combine(std::span<std::uint64_t> values, std::span<const std::uint64_t> more,
             Reduction reduction) {
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = reduction == Reduction::sum ? values[i] + more[i] : std::min(values[i], more[i]);
}

}  // namespace

Result<> reduce_to_all(std::span<std::uint64_t> values, Reduction reduction, Transport& transport,
                       MessageId id, Deadline deadline) {
  const int rank = transport.rank().value();
  const auto children = children_of(rank, transport.size());
  const auto bytes = std::as_writable_bytes(values);
  // Nearest child first: it has the smallest subtree to wait for.
  std::vector<std::uint64_t> more(children.empty() ? 0 : values.size());
  for (const Rank child : children) {
    const Recv recv{child, id, std::as_writable_bytes(std::span(more))};
    RESHARD_TRY(exchange(transport, {}, {&recv, 1}, deadline));
    combine(values, more, reduction);
  }
  if (rank != 0) {
    const Rank parent(rank & (rank - 1));
    const Send up{parent, id, bytes};
    RESHARD_TRY(exchange(transport, {&up, 1}, {}, deadline));
    const Recv down{parent, id, bytes};
    RESHARD_TRY(exchange(transport, {}, {&down, 1}, deadline));
  }
  std::vector<Send> down;
  for (auto child = children.rbegin(); child != children.rend(); ++child)
    down.push_back({*child, id, bytes});
  return exchange(transport, down, {}, deadline);
}

}  // namespace reshard::verify
