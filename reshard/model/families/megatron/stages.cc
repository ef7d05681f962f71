// SPDX-License-Identifier: Apache-2.0
// Pipeline stages of Megatron-Core: transformer_block.py get_num_layers_to_build,
// transformer_layer.py get_transformer_layer_offset, pipeline_parallel_layer_layout.py
// (megatron-core 0.16.1); hybrids: ssm/mamba_block.py (0.16.1),
// models/hybrid/hybrid_layer_allocation.py select_pipeline_segment (0.19.2).
#include "reshard/model/families/megatron/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace reshard::families {
namespace {

constexpr std::size_t kLongest = std::size_t{1} << 16;

/// Reads "*N" at `at` and moves `at` behind it; 1 if there is none.
Result<std::size_t> repetitions(std::string_view text, std::size_t& at) {
  if (at >= text.size() || text[at] != '*') return 1;
  std::size_t n = 0;
  const char* begin = text.data() + at + 1;
  const auto [stop, error] = std::from_chars(begin, text.data() + text.size(), n);
  if (error != std::errc() || n < 1 || n > kLongest)
    return fail(Code::invalid_argument,
                fmt::format("megatron: layout={}: '*' must be followed by a number from 1 to {}",
                            text, kLongest));
  at = static_cast<std::size_t>(stop - text.data());
  return n;
}

/// The text with all repetitions expanded.
Result<std::string> written_out(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    std::string part(1, text[at]);
    if (text[at] == '(') {
      const std::size_t close = text.find(')', at);
      if (close == std::string_view::npos ||
          text.substr(at + 1, close - at - 1).find('(') != std::string_view::npos)
        return fail(Code::invalid_argument,
                    fmt::format("megatron: layout={}: '(' must be closed by ')' before another one "
                                "opens",
                                text));
      part = RESHARD_TRY(written_out(text.substr(at + 1, close - at - 1)));
      at = close;
    } else if (std::string_view("EtmL|").find(text[at]) == std::string_view::npos) {
      return fail(Code::invalid_argument,
                  fmt::format("megatron: layout={}: '{}' must be one of E (embedding), t (decoder "
                              "layer), m (MTP), L (loss), | (next stage), (...)*N",
                              text, part));
    }
    ++at;
    for (std::size_t n = RESHARD_TRY(repetitions(text, at)); n > 0; --n) {
      if (out.size() + part.size() > kLongest)
        return fail(Code::invalid_argument,
                    fmt::format("megatron: layout={}: longer than {} characters when expanded",
                                text, kLongest));
      out += part;
    }
  }
  return out;
}

Index count(const std::string& row, char c) { return std::count(row.begin(), row.end(), c); }

Result<> check_rows(const MegatronSizes& s, const std::vector<std::string>& rows, Index layers,
                    Index mtp) {
  const auto wrong = [&](const std::string& what) {
    return fail(Code::invalid_argument, fmt::format("megatron: layout={}: {}", s.pipeline, what));
  };
  const Index n = static_cast<Index>(rows.size());
  if (n % s.pp != 0)
    return wrong(fmt::format("pp={} does not divide its {} (virtual) stages", s.pp, n));
  if (s.vpp != 1 && s.vpp != n / s.pp)
    return wrong(
        fmt::format("its {} stages over pp={} are vpp={}, not vpp={}", n, s.pp, n / s.pp, s.vpp));
  std::string all;
  for (const std::string& row : rows) all += row;
  if (count(all, 'E') != 1 || all.front() != 'E') return wrong("E must come first, once");
  if (count(all, 'L') != 1 || all.back() != 'L') return wrong("L must come last, once");
  if (count(all, 't') != layers)
    return wrong(fmt::format("{} decoder layers (t), but the model has num_hidden_layers={}",
                             count(all, 't'), layers));
  if (count(all, 'm') != mtp)
    return wrong(fmt::format("{} MTP layers (m) must be {} (mtp=0 leaves out those of a model)",
                             count(all, 'm'), mtp));
  if (mtp == 0) return {};
  if (all.find('t', all.find('m')) != std::string::npos)
    return wrong("decoder layers (t) must come before MTP layers (m)");
  for (Index i = 0; i < n; ++i) {
    const Index here = count(rows[static_cast<std::size_t>(i)], 'm');
    if (here != 0 && (here != mtp || i < n - s.pp))
      return wrong("all MTP layers (m) must be in one stage, in its last chunk");
  }
  return {};
}

Result<std::vector<PipelineChunk>> explicit_chunks(const MegatronSizes& s, Index layers, Index mtp,
                                                   bool hybrid) {
  const auto rows = RESHARD_TRY(parse_pipeline_layout(s.pipeline));
  RESHARD_TRY(check_rows(s, rows, layers, mtp));
  if (hybrid && count(rows.back(), 'm') != mtp)
    return fail(
        Code::invalid_argument,
        fmt::format("megatron: layout={}: the MTP layers (m) of a hybrid must be in the stage of L",
                    s.pipeline));
  std::vector<PipelineChunk> chunks;
  Index layer = 0;
  for (const std::string& row : rows) {
    const Index i = static_cast<Index>(chunks.size());
    chunks.push_back({.stage = i % s.pp,
                      .chunk = i / s.pp,
                      .first_layer = layer,
                      .num_layers = count(row, 't'),
                      .embedding = count(row, 'E') > 0,
                      .loss = count(row, 'L') > 0,
                      .mtp = count(row, 'm') > 0});
    layer += chunks.back().num_layers;
  }
  return chunks;
}

struct Shares {
  std::vector<Index> stages;  ///< layers of each, including embedding and loss if accounted for.
  bool embedding = false, loss = false;
};

/// Why the stages other than the first and last (if these are given) cannot share `rest` layers.
std::string misfit(const MegatronSizes& s, Index layers, Index accounted, Index rest, Index free) {
  std::string given;
  if (s.first > 0) given += fmt::format(" first={}", s.first);
  if (s.last > 0) given += fmt::format(" last={}", s.last);
  if (free == 0)
    return fmt::format("megatron: pp={} with{} has {} layers, must have num_hidden_layers={}", s.pp,
                       given, layers - rest, layers);
  const std::string others =
      fmt::format("{} {}stage{}", free, given.empty() ? "" : "other ", free == 1 ? "" : "s");
  if (rest < free && !given.empty())
    return fmt::format(
        "megatron: pp={} with{} leaves {} of num_hidden_layers={} to {}, fewer than one each", s.pp,
        given, std::max<Index>(rest, 0), layers, others);
  return fmt::format(
      "megatron: pp={} does not divide num_hidden_layers={}: {} cannot share {} layers{} equally; "
      "set first= and last= so that they can, or layout=",
      s.pp, layers, others, rest,
      accounted > 0 ? fmt::format(" ({} for embedding and loss)", accounted) : "");
}

Result<> check_hybrid(const MegatronSizes& s) {
  if (s.vpp > 1)
    return fail(Code::invalid_argument,
                fmt::format("megatron: vpp={}: virtual stages of a hybrid need layout= (in "
                            "Megatron the '|' of hybrid_layer_pattern)",
                            s.vpp));
  if (s.pp > 1 && (s.account_embedding || s.account_loss))
    return fail(Code::invalid_argument,
                "megatron: a hybrid's stages do not count embedding and loss as layers; leave out "
                "account_embedding and account_loss");
  return {};
}

Result<Shares> stage_shares(const MegatronSizes& s, Index layers, bool hybrid) {
  if (hybrid) RESHARD_TRY(check_hybrid(s));
  Shares out{{}, s.account_embedding, s.account_loss};
  if (accounts_by_rule(s, layers, hybrid)) out.embedding = out.loss = true;
  const Index accounted = (out.embedding ? 1 : 0) + (out.loss ? 1 : 0);
  const Index first = s.first, last = s.pp > 1 ? s.last : 0;
  const Index rest = layers + accounted - first - last,
              free = s.pp - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
  const bool fits = free == 0 ? rest == 0 : rest >= free && rest % free == 0;
  if (s.pp == 1 && s.last > 0 && s.last != layers)
    return fail(Code::invalid_argument,
                fmt::format("megatron: last={}, but the one stage of pp=1 has num_hidden_layers={}",
                            s.last, layers));
  if (!fits) return fail(Code::invalid_argument, misfit(s, layers, accounted, rest, free));
  out.stages.assign(static_cast<std::size_t>(s.pp), free > 0 ? rest / free : 0);
  if (first > 0) out.stages.front() = first;
  if (last > 0) out.stages.back() = last;
  for (Index n : out.stages)
    if (n % s.vpp != 0)
      return fail(Code::invalid_argument,
                  fmt::format("megatron: vpp={} does not divide the {} layers of a pipeline stage "
                              "(num_hidden_layers={}, pp={})",
                              s.vpp, n, layers, s.pp));
  return out;
}

}  // namespace

Result<std::vector<std::string>> parse_pipeline_layout(std::string_view text) {
  const std::string all = RESHARD_TRY(written_out(text));
  std::vector<std::string> rows(1);
  for (char c : all) {
    if (c == '|')
      rows.emplace_back();
    else
      rows.back() += c;
  }
  return rows;
}

bool accounts_by_rule(const MegatronSizes& s, Index layers, bool hybrid) {
  if (hybrid || !s.pipeline.empty() || s.first > 0 || s.last > 0 || s.accounts_given) return false;
  const Index chunks = s.pp * s.vpp;
  return s.pp > 1 && layers % chunks != 0 && (layers + 2) % chunks == 0;
}

Result<std::vector<PipelineChunk>> pipeline_chunks(const MegatronSizes& s, Index layers, Index mtp,
                                                   bool hybrid) {
  if (!s.pipeline.empty()) return explicit_chunks(s, layers, mtp, hybrid);
  const Shares shares = RESHARD_TRY(stage_shares(s, layers, hybrid));
  std::vector<PipelineChunk> chunks;
  Index layer = 0;
  for (Index chunk = 0; chunk < s.vpp; ++chunk) {
    for (Index stage = 0; stage < s.pp; ++stage) {
      PipelineChunk c{.stage = stage, .chunk = chunk, .first_layer = layer};
      c.embedding = chunk == 0 && stage == 0;
      c.loss = chunk == s.vpp - 1 && stage == s.pp - 1;
      c.mtp = c.loss && mtp > 0;
      c.num_layers = shares.stages[static_cast<std::size_t>(stage)] / s.vpp -
                     (c.embedding && shares.embedding ? 1 : 0) - (c.loss && shares.loss ? 1 : 0);
      if (c.num_layers < 0)
        return fail(Code::invalid_argument,
                    fmt::format("megatron: pp={} vpp={} leaves no room for both embedding and loss "
                                "in num_hidden_layers={}",
                                s.pp, s.vpp, layers));
      layer += c.num_layers;
      chunks.push_back(c);
    }
  }
  return chunks;
}

}  // namespace reshard::families
