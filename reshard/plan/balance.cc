// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/balance.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "reshard/base/check.h"
#include "reshard/plan/flow.h"

namespace reshard {
namespace {

/// Ranks that are holders of the same supplies.
struct Atom {
  std::vector<Rank> ranks;
  std::vector<std::size_t> supplies;
};

std::vector<Atom> find_atoms(const std::vector<Supply>& supplies) {
  std::map<Rank, std::vector<std::size_t>> supplies_of;
  for (std::size_t s = 0; s < supplies.size(); ++s)
    if (supplies[s].bytes > 0)
      supplies[s].holders.for_each([&](Rank r) { supplies_of[r].push_back(s); });
  std::map<std::vector<std::size_t>, std::size_t> known;
  std::vector<Atom> atoms;
  for (const auto& [rank, in] : supplies_of) {
    const auto [it, fresh] = known.try_emplace(in, atoms.size());
    if (fresh) atoms.push_back({{}, in});
    atoms[it->second].ranks.push_back(rank);
  }
  return atoms;
}

/// Bytes of one supply sent by one atom, as a fraction with the solve's common denominator.
struct Part {
  std::size_t supply, atom;
  Int128 amount, denominator;
};

class Solver {
 public:
  explicit Solver(const std::vector<Supply>& supplies)
      : supplies_(supplies), atoms_(find_atoms(supplies)) {
    atoms_of_.resize(supplies.size());
    for (std::size_t a = 0; a < atoms_.size(); ++a)
      for (std::size_t s : atoms_[a].supplies) atoms_of_[s].push_back(a);
  }

  Balance run() {
    std::vector<bool> seen(supplies_.size(), false);
    for (std::size_t s = 0; s < supplies_.size(); ++s) {
      if (seen[s] || supplies_[s].bytes == 0) continue;
      RESHARD_CHECK(!atoms_of_[s].empty());
      auto [block, atoms] = component(s, seen);
      while (!block.empty()) fix_bottleneck(block, atoms);
    }
    return result();
  }

 private:
  using Ids = std::vector<std::size_t>;

  std::pair<Ids, Ids> component(std::size_t start, std::vector<bool>& seen) const {
    Ids block{start}, atoms;
    std::vector<bool> atom_seen(atoms_.size(), false);
    seen[start] = true;
    for (std::size_t i = 0; i < block.size(); ++i) {
      for (std::size_t a : atoms_of_[block[i]]) {
        if (atom_seen[a]) continue;
        atom_seen[a] = true;
        atoms.push_back(a);
        for (std::size_t s : atoms_[a].supplies) {
          if (!seen[s]) block.push_back(s);
          seen[s] = true;
        }
      }
    }
    std::sort(block.begin(), block.end());
    std::sort(atoms.begin(), atoms.end());
    return {block, atoms};
  }

  Index ranks_in(const Ids& atoms) const {
    Index n = 0;
    for (std::size_t a : atoms) n += static_cast<Index>(atoms_[a].ranks.size());
    return n;
  }

  Index bytes_in(const Ids& block) const {
    Index n = 0;
    for (std::size_t s : block) n += supplies_[s].bytes;
    return n;
  }

  /// One max-flow of `block` into `atoms` with every rank's load at most bytes / ranks. When all
  /// bytes fit, their parts go to `parts` and the result is empty; else it is the supplies that
  /// make the cut.
  Ids try_load(const Ids& block, const Ids& atoms, Index bytes, Index ranks,
               std::vector<Part>& parts) const {
    std::vector<std::size_t> node_of(atoms_.size(), 0);
    MaxFlow flow(2 + block.size() + atoms.size());
    for (std::size_t i = 0; i < atoms.size(); ++i) {
      node_of[atoms[i]] = 2 + block.size() + i;
      flow.add_edge(node_of[atoms[i]], 1,
                    Int128{bytes} * static_cast<Index>(atoms_[atoms[i]].ranks.size()));
    }
    struct Link {
      std::size_t supply, atom, edge;
    };
    std::vector<Link> links;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const Int128 need = Int128{supplies_[block[i]].bytes} * ranks;
      flow.add_edge(0, 2 + i, need);
      for (std::size_t a : atoms_of_[block[i]])
        if (node_of[a] != 0) links.push_back({block[i], a, flow.add_edge(2 + i, node_of[a], need)});
    }
    if (flow.run(0, 1) == Int128{bytes_in(block)} * ranks) {
      for (const Link& l : links)
        if (const Int128 f = flow.flow(l.edge); f > 0)
          parts.push_back({l.supply, l.atom, f, ranks});
      return {};
    }
    Ids cut;
    for (std::size_t i = 0; i < block.size(); ++i)
      if (flow.on_source_side(2 + i)) cut.push_back(block[i]);
    return cut;
  }

  /// Finds the supplies with the highest unavoidable load per rank, fixes their parts, and takes
  /// them and their atoms out of the problem.
  void fix_bottleneck(Ids& block, Ids& atoms) {
    Ids tight = block, tight_atoms = atoms;
    while (true) {
      std::vector<Part> parts;
      const Index bytes = bytes_in(tight), ranks = ranks_in(tight_atoms);
      const Ids cut = try_load(block, atoms, bytes, ranks, parts);
      if (cut.empty()) break;
      tight = cut;
      tight_atoms = neighbours(tight, atoms);
    }
    const Index bytes = bytes_in(tight), ranks = ranks_in(tight_atoms);
    optimal_max_ = std::max(optimal_max_, (bytes + ranks - 1) / ranks);
    RESHARD_CHECK(try_load(tight, tight_atoms, bytes, ranks, parts_).empty());
    erase(block, tight);
    erase(atoms, tight_atoms);
  }

  Ids neighbours(const Ids& block, const Ids& atoms) const {
    std::vector<bool> in(atoms_.size(), false);
    for (std::size_t s : block)
      for (std::size_t a : atoms_of_[s]) in[a] = true;
    Ids out;
    for (std::size_t a : atoms)
      if (in[a]) out.push_back(a);
    return out;
  }

  static void erase(Ids& from, const Ids& what) {
    Ids left;
    std::set_difference(from.begin(), from.end(), what.begin(), what.end(),
                        std::back_inserter(left));
    from = std::move(left);
  }

  Balance result() {
    std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
      return std::pair(a.supply, a.atom) < std::pair(b.supply, b.atom);
    });
    Balance out;
    out.optimal_max = optimal_max_;
    out.shares.resize(supplies_.size());
    Int128 sum = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& p = parts_[i];
      if (i == 0 || parts_[i - 1].supply != p.supply) sum = 0;
      const auto& ranks = atoms_[p.atom].ranks;
      const auto n = static_cast<Index>(ranks.size());
      for (Index k = 0; k < n; ++k) {
        const auto begin = static_cast<Index>((sum + p.amount * k / n) / p.denominator);
        const auto end = static_cast<Index>((sum + p.amount * (k + 1) / n) / p.denominator);
        if (begin < end)
          out.shares[p.supply].push_back({ranks[static_cast<std::size_t>(k)], begin});
      }
      sum += p.amount;
    }
    return out;
  }

  const std::vector<Supply>& supplies_;
  std::vector<Atom> atoms_;
  std::vector<Ids> atoms_of_;
  std::vector<Part> parts_;
  Index optimal_max_ = 0;
};

}  // namespace

Balance balance(const std::vector<Supply>& supplies) { return Solver(supplies).run(); }

}  // namespace reshard
