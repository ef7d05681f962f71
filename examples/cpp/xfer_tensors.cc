// SPDX-License-Identifier: Apache-2.0
// xferdtensor() in C++. A trainer of two ranks (0 and 1) has a tensor by rows; an engine of two
// (2 and 3) has it by columns, in BF16. Every rank makes the same calls; each passes the memory
// that it has. Ranks are threads of this process; as processes they would call join_group().
#include <reshard/dtensor.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <thread>
#include <vector>

namespace {

using reshard::Placement;
using reshard::dtensor::TensorTransfer;

constexpr int kRanks = 4;
constexpr reshard::Index kRows = 6, kColumns = 8;

TensorTransfer rows_to_columns() {
  const Placement by_rows{Placement::Kind::shard, 0}, by_columns{Placement::Kind::shard, 1};
  TensorTransfer transfer{.shape = {kRows, kColumns}};
  transfer.source = {reshard::dtensor::mesh_of({2}), {by_rows}, reshard::DType::f32};
  transfer.target = {
      reshard::dtensor::mesh_of({2}, reshard::Rank(2)), {by_columns}, reshard::DType::bf16};
  return transfer;
}

reshard::Result<> run(reshard::InprocGroup& group, reshard::Rank me) {
  const auto transport = RESHARD_TRY(group.transport(me));
  const auto control = RESHARD_TRY(group.control(me));
  TensorTransfer transfer = rows_to_columns();
  std::vector<float> rows;             // of a trainer's rank
  std::vector<std::uint16_t> columns;  // of an engine's
  if (me.value() < 2) {
    rows.assign(kRows / 2 * kColumns, static_cast<float>(me.value() + 1));
    transfer.source.local = std::as_writable_bytes(std::span(rows));
  } else {
    columns.resize(kRows * kColumns / 2);
    transfer.target.local = std::as_writable_bytes(std::span(columns));
  }
  const reshard::SessionReport report =
      RESHARD_TRY(reshard::dtensor::xferdtensor(transfer, *transport, *control));
  if (me.value() >= 2)  // 1 and 2 in BF16 are 3f80 and 4000
    std::printf("rank %d received %lld bytes: first row %x, last row %x\n", me.value(),
                static_cast<long long>(report.bytes), columns.front(), columns.back());
  return control->quiesce(reshard::Deadline::after(std::chrono::seconds(10)));
}

reshard::Result<> run_all() {
  auto group = RESHARD_TRY(reshard::InprocGroup::create(kRanks));
  std::vector<reshard::Result<>> results(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back(
        [&, r] { results[static_cast<std::size_t>(r)] = run(group, reshard::Rank(r)); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) RESHARD_TRY(result);
  return {};
}

}  // namespace

int main() {
  const auto done = run_all();
  if (!done) std::fprintf(stderr, "xfer_tensors: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
