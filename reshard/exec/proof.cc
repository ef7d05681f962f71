// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "reshard/exec/progress_meter.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/plan/holdings.h"
#include "reshard/plan/locate.h"
#include "reshard/transform/convert.h"

namespace reshard {
namespace {

constexpr Index kUnitBytes = Index{8} << 20;

/// One copy of one cell, on one rank.
struct Copy {
  TensorId tensor;
  Rank rank;
  Box box;
  Strided where;
  const std::byte* data = nullptr;
  Fingerprint print;
  std::int64_t same_as = -1;  ///< an earlier copy at the same address, which need not be read again
};

/// Some rows of a copy, fingerprinted by one worker.
struct Unit {
  std::size_t copy = 0;
  Box box;
  Fingerprint print;
};

class Prover {
 public:
  Prover(const RankBuffers& buffers, std::span<const StoredForm> forms)
      : buffers_(buffers), layout_(buffers.layout()), holdings_(layout_, sets_) {
    const auto own = forms_of(layout_);
    for (std::size_t t = 0; t < own.size(); ++t)
      conversions_.push_back({own[t], forms.empty() ? own[t] : forms[t]});
  }

  Result<> find_copies() {
    const ModelSpec& model = layout_.model();
    for (Index t = 0; t < model.size(); ++t) {
      const TensorId id(static_cast<TensorId::rep>(t));
      keys_.push_back(RESHARD_TRY(FingerprintKey::make(model[id].name, model[id].shape,
                                                       conversions_[id.index()].to.dtype)));
      first_copy_.push_back(copies_.size());
      for (const Cell& cell : holdings_.cells(holdings_.list(id))) {
        const std::size_t first = copies_.size();
        const SlotId* missing = nullptr;
        SlotId slot;
        sets_[cell.ranks].for_each([&](Rank r) {
          for_each_place(layout_, id, r, cell.box, [&](const Located& at) {
            const std::byte* data = buffers_.at(r, at.slot);
            if (data == nullptr) missing = &(slot = at.slot);
            copies_.push_back({id, r, cell.box, at.where, data, {}, -1});
          });
        });
        if (missing != nullptr)
          return fail(Code::invalid_argument,
                      fmt::format("{}: no memory for local tensor '{}' ({})", layout_.name(),
                                  layout_.slot(*missing).name, model[id].name));
        mark_shared(first);
        cut_into_units(first, bits(conversions_[id.index()].from.dtype));
      }
    }
    first_copy_.push_back(copies_.size());
    return {};
  }

  Index bytes() const {
    Index n = 0;
    for (const Unit& u : units_) n += unit_bytes(u);
    return n;
  }

  Result<> run(int threads, const Progress& progress) {
    WorkerPool pool(threads);
    ProgressMeter meter("fingerprint", bytes(), progress);
    std::atomic<std::size_t> next{0};
    auto body = [&](int worker) {
      std::vector<std::byte> converted;
      for (std::size_t i = next++; i < units_.size(); i = next++) {
        Unit& u = units_[i];
        const Copy& c = copies_[u.copy];
        auto print = print_of(u, c, converted);
        if (!print) {
          meter.fail_with(std::move(print).error().in(layout_.model()[c.tensor].name));
        } else {
          u.print = *print;
        }
        if (!meter.add(worker, unit_bytes(u))) break;
      }
    };
    pool.run(body);
    RESHARD_TRY(meter.finish());
    for (const Unit& u : units_) copies_[u.copy].print += u.print;
    for (Copy& c : copies_)
      if (c.same_as >= 0) c.print = copies_[static_cast<std::size_t>(c.same_as)].print;
    return {};
  }

  /// Sums the first copy of each cell and compares the others with it.
  Prints::Tensor result(TensorId id) const {
    Prints::Tensor out;
    std::size_t first = first_copy_[id.index()];
    Index holders = 0;
    for (std::size_t i = first; i < first_copy_[id.index() + 1]; ++i) {
      const Copy &c = copies_[i], &f = copies_[first];
      if (i == first || !(c.box == f.box)) {
        if (i != first)
          out.replicas = out.replicas == 0 ? holders : std::min(out.replicas, holders);
        first = i;
        holders = 0;
        out.print += c.print;
      } else if (out.agree && !(c.print == f.print)) {
        out.agree = false;
        out.disagreement = fmt::format("rank {} differs from rank {} in {}", c.rank.value(),
                                       f.rank.value(), to_string(c.box));
      }
      ++holders;
    }
    out.replicas = out.replicas == 0 ? holders : std::min(out.replicas, holders);
    return out;
  }

 private:
  Index unit_bytes(const Unit& u) const {
    return u.box.volume() * bits(conversions_[copies_[u.copy].tensor.index()].from.dtype) / 8;
  }

  Result<Fingerprint> print_of(const Unit& u, const Copy& c,
                               std::vector<std::byte>& converted) const {
    const FingerprintKey& key = keys_[c.tensor.index()];
    const Conversion& conversion = conversions_[c.tensor.index()];
    Dims inside;
    for (int d = 0; d < u.box.rank(); ++d) inside.push_back(u.box[d].begin() - c.box[d].begin());
    const Strided where = at(c.where, inside);
    if (!conversion.converts()) return fingerprint(key, u.box, where, c.data);
    const int from = bits(conversion.from.dtype) / 8, to = bits(conversion.to.dtype) / 8;
    const Strided packed{0, row_major(u.box.shape())};
    converted.resize(static_cast<std::size_t>(u.box.volume() * to));
    run_conversion(make_widening_copy(u.box.shape(), where, packed, from, to), conversion, c.data,
                   converted.data());
    return fingerprint(key, u.box, packed, converted.data());
  }

  void mark_shared(std::size_t first) {
    for (std::size_t i = first; i < copies_.size(); ++i)
      for (std::size_t j = first; j < i && copies_[i].same_as < 0; ++j)
        if (copies_[j].data == copies_[i].data && copies_[j].where == copies_[i].where)
          copies_[i].same_as = static_cast<std::int64_t>(j);
  }

  void cut_into_units(std::size_t first, int element_bits) {
    for (std::size_t i = first; i < copies_.size(); ++i) {
      if (copies_[i].same_as >= 0) continue;
      const Box& box = copies_[i].box;
      const Index parts =
          box.rank() == 0
              ? 1
              : std::clamp<Index>(box.volume() * element_bits / 8 / kUnitBytes, 1, box[0].size());
      for (Index p = 0; p < parts; ++p) {
        if (parts == 1) {
          units_.push_back({i, box, {}});
          continue;
        }
        const Index n = box[0].size();
        units_.push_back({i,
                          box.with(0, Interval{box[0].begin() + n * p / parts,
                                               box[0].begin() + n * (p + 1) / parts}),
                          {}});
      }
    }
  }

  const RankBuffers& buffers_;
  const ModelLayout& layout_;
  RankSets sets_;
  Holdings holdings_;
  std::vector<Conversion>
      conversions_;  ///< by TensorId: from the layout's form to the one printed.
  std::vector<FingerprintKey> keys_;
  std::vector<Copy> copies_;
  std::vector<std::size_t> first_copy_;
  std::vector<Unit> units_;
};

}  // namespace

std::vector<StoredForm> forms_of(const ModelLayout& layout) {
  std::vector<StoredForm> forms;
  for (Index t = 0; t < layout.model().size(); ++t)
    forms.push_back(layout.form(TensorId(static_cast<TensorId::rep>(t))));
  return forms;
}

Result<Prints> fingerprints(const RankBuffers& buffers, int threads, const Progress& progress,
                            std::span<const StoredForm> forms) {
  const auto start = std::chrono::steady_clock::now();
  Prover prover(buffers, forms);
  RESHARD_TRY(prover.find_copies());
  RESHARD_TRY(prover.run(threads, progress));
  Prints prints;
  prints.bytes = prover.bytes();
  for (Index t = 0; t < buffers.layout().model().size(); ++t)
    prints.tensors.push_back(prover.result(TensorId(static_cast<TensorId::rep>(t))));
  prints.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return prints;
}

Result<> same_prints(const ModelSpec& model, const Prints& source, const Prints& target) {
  for (Index t = 0; t < model.size(); ++t) {
    const auto i = static_cast<std::size_t>(t);
    const std::string& name = model.tensors()[i].name;
    for (const auto* side : {&source, &target})
      if (!side->tensors[i].agree)
        return fail(Code::corrupt, fmt::format("tensor '{}': {} replicas do not agree: {}", name,
                                               side == &source ? "source" : "target",
                                               side->tensors[i].disagreement));
    if (!(source.tensors[i].print == target.tensors[i].print))
      return fail(
          Code::corrupt,
          fmt::format("tensor '{}': fingerprint of the source is {}, of the target {}", name,
                      to_string(source.tensors[i].print), to_string(target.tensors[i].print)));
  }
  return {};
}

}  // namespace reshard
