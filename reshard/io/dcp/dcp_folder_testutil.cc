// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dcp/dcp_folder_testutil.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "reshard/io/checkpoint/index.h"
#include "reshard/io/dcp/dcp_writer.h"

namespace reshard::testing {
namespace {

void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// A run of rows of a tensor.
struct Rows {
  const DcpTensor* tensor = nullptr;
  Index begin = 0;
  Dims shape;
};

std::vector<Rows> rows_of(const DcpTensor& tensor) {
  const Dims& shape = tensor.spec.shape;
  if (tensor.rows == 0 || shape.size() == 0) return {{&tensor, 0, shape}};
  std::vector<Rows> out;
  for (Index begin = 0; begin < shape[0]; begin += tensor.rows) {
    Rows rows{&tensor, begin, shape};
    rows.shape[0] = std::min(tensor.rows, shape[0] - begin);
    out.push_back(rows);
  }
  return out;
}

}  // namespace

DcpTensor dcp_tensor(std::string name, DType dtype, const Dims& shape, unsigned seed) {
  DcpTensor out{{std::move(name), dtype, shape}, {}, 0};
  std::minstd_rand random(seed + 1);
  out.bytes.resize(static_cast<std::size_t>(volume(shape) * bits(dtype) / 8));
  for (char& byte : out.bytes) byte = static_cast<char>(random() >> 8U);
  return out;
}

void write_dcp_folder(const std::string& folder, const std::vector<DcpTensor>& tensors,
                      const std::vector<std::string>& objects) {
  const std::string file = dcp_file_name(Rank(0)), object_file = dcp_file_name(Rank(1));
  std::vector<Rows> pieces;
  std::vector<TensorSpec> whole, specs;
  for (const DcpTensor& tensor : tensors) {
    whole.push_back(tensor.spec);
    for (const Rows& rows : rows_of(tensor)) {
      pieces.push_back(rows);
      specs.push_back({tensor.spec.name, tensor.spec.dtype, rows.shape});
    }
  }
  const auto plan = plan_dcp_file(specs);
  ASSERT_TRUE(plan) << plan.error().message;
  std::filesystem::remove(folder + "/" + file);  // of an earlier call, whose readers keep it
  auto writer = DcpWriter::create(folder + "/" + file, specs);
  ASSERT_TRUE(writer) << writer.error().message;
  std::vector<DcpPiece> listed;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Rows& rows = pieces[i];
    const Dims& shape = rows.tensor->spec.shape;
    const auto row = shape.size() == 0 || shape[0] == 0
                         ? std::size_t{0}
                         : rows.tensor->bytes.size() / static_cast<std::size_t>(shape[0]);
    const auto bytes = std::as_bytes(std::span(rows.tensor->bytes))
                           .subspan(row * static_cast<std::size_t>(rows.begin),
                                    static_cast<std::size_t>(plan->tensors[i].bytes));
    ASSERT_TRUE(writer->write_at(i, 0, bytes));
    Dims offsets = Dims::filled(shape.size(), 0);
    if (shape.size() > 0) offsets[0] = rows.begin;
    listed.push_back({rows.tensor->spec.name, offsets, rows.shape, file, plan->items[i]});
  }
  ASSERT_TRUE(writer->finish(false));
  const std::string none = saved_none();
  std::vector<DcpObject> others;
  for (const std::string& name : objects)
    others.push_back({name, object_file, {0, static_cast<std::int64_t>(none.size())}});
  if (!others.empty()) write_file(folder + "/" + object_file, none);
  write_file(folder + "/" + std::string(kDcpFile), dcp_metadata(whole, listed, others));
}

}  // namespace reshard::testing
