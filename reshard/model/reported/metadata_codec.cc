// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/reported/metadata_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "reshard/base/bytes.h"

namespace reshard {
namespace {

using Parameter = GatheredMetadata::Parameter;

constexpr std::string_view kMagic = "RSHM";
constexpr std::uint64_t kMaxRank = (1 << 20) - 1;
constexpr std::size_t kMaxParameters = std::size_t{1} << 20;
constexpr std::size_t kMaxNameBytes = std::size_t{1} << 28;
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 48;
constexpr int kNumDTypes = static_cast<int>(kLastDType) + 1;
enum Flag : unsigned { kIsTp = 1, kIsEp = 2, kHasSizes = 4, kHasExperts = 8, kAllFlags = 15 };

class Encoder {
 public:
  explicit Encoder(const GatheredMetadata& all) : all_(all) {}

  std::vector<std::byte> run() {
    w_.raw(kMagic);
    w_.number(kMetadataVersion);
    strings();
    w_.number(all_.groups.size());
    for (const auto& g : all_.groups) group(g);
    ByteWriter kinds = std::move(w_);
    w_ = ByteWriter();
    w_.number(all_.templates.size());
    for (const auto& t : all_.templates) layout(t);
    ranks();
    const auto rest = std::move(w_).finish();
    kinds.number(kinds_.size());
    for (const auto& bytes : kinds_in_order_) kinds.raw(view(bytes));
    kinds.raw(view(rest));
    return std::move(kinds).finish();
  }

 private:
  static std::string_view view(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void strings() {
    for (const auto& t : all_.templates) {
      for (const Parameter& p : t.parameters) strings_.emplace(p.name, 0);
      for (const auto& [local, global] : t.layer_module_prefix_map) {
        strings_.emplace(local, 0);
        strings_.emplace(global, 0);
      }
    }
    w_.number(strings_.size());
    std::string_view before;
    std::uint64_t next = 0;
    for (auto& [text, id] : strings_) {
      id = next++;
      const auto [a, b] = std::mismatch(text.begin(), text.end(), before.begin(), before.end());
      const auto shared = static_cast<std::size_t>(a - text.begin());
      w_.number(shared);
      w_.text(text.substr(shared));
      before = text;
    }
  }

  void group(const std::vector<Rank>& ranks) {
    w_.number(ranks.size());
    std::int64_t before = 0;
    for (Rank r : ranks) {
      w_.signed_number(r.value() - before);
      before = r.value();
    }
  }

  std::uint64_t kind(const Parameter& p) {
    ByteWriter w;
    w.number((p.is_tp ? kIsTp : 0U) | (p.is_ep ? kIsEp : 0U) |
             (p.partition_sizes ? kHasSizes : 0U) | (p.num_experts ? kHasExperts : 0U));
    w.number(static_cast<std::uint64_t>(p.dtype));
    w.number(static_cast<std::uint64_t>(p.shape.size()));
    for (Index n : p.shape) w.number(static_cast<std::uint64_t>(n));
    w.signed_number(p.partition_dim);
    w.signed_number(p.partition_stride);
    if (p.partition_sizes) {
      w.number(p.partition_sizes->size());
      for (Index n : *p.partition_sizes) w.signed_number(n);
    }
    if (p.num_experts) w.signed_number(*p.num_experts);
    for (std::int8_t g : {p.tensor_group, p.expert_group, p.data_group, p.pipeline_group})
      w.number(static_cast<std::uint64_t>(g + 1));
    auto bytes = std::move(w).finish();
    const auto [it, fresh] = kinds_.try_emplace(bytes, kinds_.size());
    if (fresh) kinds_in_order_.push_back(std::move(bytes));
    return it->second;
  }

  void layout(const GatheredMetadata::Template& t) {
    w_.number(t.layer_module_prefix_map.size());
    for (const auto& [local, global] : t.layer_module_prefix_map) {
      w_.number(strings_.at(local));
      w_.number(strings_.at(global));
    }
    w_.number(t.parameters.size());
    std::int64_t before = 0;
    for (const Parameter& p : t.parameters) {
      const auto id = static_cast<std::int64_t>(strings_.at(p.name));
      w_.signed_number(id - before);
      before = id;
      w_.number(kind(p));
    }
  }

  void ranks() {
    w_.number(all_.ranks.size());
    std::int64_t before = -1;
    for (const auto& entry : all_.ranks) {
      w_.number(static_cast<std::uint64_t>(entry.rank.value() - before - 1));
      before = entry.rank.value();
      w_.number(entry.layout);
      w_.number(entry.groups.size());
      for (std::uint32_t g : entry.groups) w_.number(g);
    }
  }

  const GatheredMetadata& all_;
  ByteWriter w_;
  std::map<std::string_view, std::uint64_t> strings_;
  std::map<std::vector<std::byte>, std::uint64_t> kinds_;
  std::vector<std::vector<std::byte>> kinds_in_order_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : r_(bytes, "metadata") {}

  Result<GatheredMetadata> run() {
    if (r_.raw(kMagic.size(), "the first bytes") != kMagic) r_.fail("does not begin with RSHM");
    const auto version = r_.number(std::numeric_limits<std::uint64_t>::max(), "the version");
    if (r_.ok() && version != kMetadataVersion)
      r_.fail(fmt::format("version {}, this build reads {}", version, kMetadataVersion));
    strings();
    groups();
    kinds();
    templates();
    ranks();
    RESHARD_TRY(r_.finish());
    return std::move(all_);
  }

 private:
  void strings() {
    const std::size_t n = r_.count(2, "the number of names");
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < n && r_.ok(); ++i) {
      const std::string& before = strings_.empty() ? std::string() : strings_.back();
      const auto shared = r_.number(before.size(), "a name's shared length");
      const auto rest = r_.text(kMaxParameterName - shared, "a name");
      std::string text = before.substr(0, shared);
      text.append(rest);
      if (i > 0 && text <= before) r_.fail("names are not in order");
      if ((bytes += text.size()) > kMaxNameBytes) r_.fail("names are too long together");
      strings_.push_back(std::move(text));
    }
  }

  void groups() {
    const std::size_t n = r_.count(1, "the number of groups");
    for (std::size_t i = 0; i < n && r_.ok(); ++i) {
      std::vector<Rank> ranks(r_.count(1, "a group's size"));
      std::int64_t at = 0;
      for (Rank& r : ranks) {
        at += r_.signed_number(-at, static_cast<std::int64_t>(kMaxRank) - at, "a rank of a group");
        r = Rank(static_cast<Rank::rep>(at));
      }
      auto sorted = ranks;
      std::sort(sorted.begin(), sorted.end());
      if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
        r_.fail("a group repeats a rank");
      all_.groups.push_back(std::move(ranks));
    }
  }

  std::int8_t slot() {
    return static_cast<std::int8_t>(
        static_cast<int>(r_.number(kMaxGroupsOfRank, "a group's slot")) - 1);
  }

  void kinds() {
    const std::size_t n = r_.count(9, "the number of kinds");
    for (std::size_t i = 0; i < n && r_.ok(); ++i) {
      Parameter p;
      p.name = "?";
      const auto flags = r_.number(kAllFlags, "flags");
      p.is_tp = (flags & kIsTp) != 0;
      p.is_ep = (flags & kIsEp) != 0;
      p.dtype = static_cast<DType>(r_.number(kNumDTypes - 1, "a dtype"));
      const auto dims = r_.number(kMaxDims, "a number of dimensions");
      for (std::uint64_t d = 0; d < dims; ++d)
        p.shape.push_back(static_cast<Index>(r_.number(kMaxNumber, "a dimension")));
      p.partition_dim = static_cast<int>(r_.signed_number(-kMaxDims, kMaxDims, "partition_dim"));
      p.partition_stride = r_.signed_number(-kMaxNumber, kMaxNumber, "partition_stride");
      if ((flags & kHasSizes) != 0) {
        p.partition_sizes.emplace(r_.count(1, "the number of partition_sizes"));
        for (Index& size : *p.partition_sizes)
          size = r_.signed_number(-kMaxNumber, kMaxNumber, "a partition size");
      }
      if ((flags & kHasExperts) != 0)
        p.num_experts = r_.signed_number(-kMaxNumber, kMaxNumber, "num_experts");
      p.tensor_group = slot();
      p.expert_group = slot();
      p.data_group = slot();
      p.pipeline_group = slot();
      if (const auto good = check_parameter(p); !good) r_.fail(good.error().message);
      kinds_.push_back(std::move(p));
    }
  }

  const std::string& string(std::uint64_t id) const { return strings_[id]; }
  std::uint64_t string_id() {
    if (strings_.empty()) r_.fail("there are no names");
    return r_.number(strings_.empty() ? 0 : strings_.size() - 1, "a name's number");
  }

  void templates() {
    const std::size_t n = r_.count(2, "the number of templates");
    std::size_t parameters = 0, bytes = 0;
    for (std::size_t i = 0; i < n && r_.ok(); ++i) {
      GatheredMetadata::Template t;
      const std::size_t prefixes = r_.count(2, "the number of layer prefixes");
      for (std::size_t k = 0; k < prefixes && r_.ok(); ++k) {
        const auto local = string_id(), global = string_id();
        if (r_.ok() && !t.layer_module_prefix_map.emplace(string(local), string(global)).second)
          r_.fail("a layer prefix is repeated");
      }
      const std::size_t count = r_.count(2, "the number of parameters");
      if ((parameters += count) > kMaxParameters) r_.fail("too many parameters");
      std::set<std::int64_t> seen;
      std::int64_t at = 0;
      for (std::size_t k = 0; k < count && r_.ok(); ++k) {
        const auto last = static_cast<std::int64_t>(strings_.size()) - 1;
        at += r_.signed_number(-at, std::max<std::int64_t>(0, last - at), "a name's number");
        const auto kind = r_.number(kinds_.empty() ? 0 : kinds_.size() - 1, "a kind's number");
        if (at > last || kinds_.empty()) r_.fail("a parameter without name or kind");
        if (!seen.insert(at).second) r_.fail("two parameters have one name");
        if (!r_.ok()) break;
        t.parameters.push_back(kinds_[kind]);
        Parameter& p = t.parameters.back();
        p.name = string(static_cast<std::uint64_t>(at));
        if ((bytes += p.name.size()) > kMaxNameBytes) r_.fail("names are too long together");
        if (p.name.empty()) r_.fail("an empty name");
      }
      all_.templates.push_back(std::move(t));
    }
  }

  void ranks() {
    need_.resize(all_.templates.size());
    for (std::size_t i = 0; i < need_.size(); ++i) {
      for (const Parameter& p : all_.templates[i].parameters) {
        for (int g : {p.tensor_group, p.expert_group, p.data_group, p.pipeline_group})
          need_[i].slots = std::max(need_[i].slots, static_cast<std::size_t>(g + 1));
        if (p.is_tp) need_[i].holding.insert(p.tensor_group);
        if (p.is_ep && p.expert_group >= 0) need_[i].holding.insert(p.expert_group);
      }
    }
    const std::size_t n = r_.count(3, "the number of ranks");
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < n && r_.ok(); ++i) {
      next += r_.number(next > kMaxRank ? 0 : kMaxRank - next, "a rank");
      if (next > kMaxRank) r_.fail("a rank is too large");
      GatheredMetadata::Entry entry{Rank(static_cast<Rank::rep>(next++)), 0, {}};
      entry.layout = static_cast<std::uint32_t>(
          r_.number(all_.templates.empty() ? 0 : all_.templates.size() - 1, "a template's number"));
      entry.groups.resize(r_.number(std::min(kMaxGroupsOfRank, r_.left()), "a number of groups"));
      for (std::uint32_t& g : entry.groups)
        g = static_cast<std::uint32_t>(
            r_.number(all_.groups.empty() ? 0 : all_.groups.size() - 1, "a group's number"));
      if (all_.templates.empty() || (all_.groups.empty() && !entry.groups.empty()))
        r_.fail("a rank without template or groups");
      if (r_.ok()) check(entry);
      all_.ranks.push_back(std::move(entry));
    }
  }

  void check(const GatheredMetadata::Entry& entry) {
    const Need& need = need_[entry.layout];
    if (entry.groups.size() < need.slots) return r_.fail("a rank has too few groups");
    for (std::int8_t slot : need.holding) {
      const auto& group = all_.groups[entry.groups[static_cast<std::size_t>(slot)]];
      if (std::find(group.begin(), group.end(), entry.rank) == group.end())
        return r_.fail(fmt::format("rank {} is not in its group", entry.rank.value()));
    }
  }

  /// The requirements of a template for the groups of a rank.
  struct Need {
    std::size_t slots = 0;
    std::set<std::int8_t> holding;
  };

  ByteReader r_;
  GatheredMetadata all_;
  std::vector<std::string> strings_;
  std::vector<Parameter> kinds_;
  std::vector<Need> need_;
};

}  // namespace

std::vector<std::byte> encode_metadata(const GatheredMetadata& all) { return Encoder(all).run(); }

Result<GatheredMetadata> decode_metadata(std::span<const std::byte> bytes) {
  return Decoder(bytes).run();
}

}  // namespace reshard
