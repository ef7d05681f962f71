// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/balance.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "reshard/base/check.h"
#include "reshard/base/int128.h"

namespace reshard {
namespace {

/// Maximum flow by Dinic's algorithm on a small directed graph, with exact 128-bit capacities.
class MaxFlow {
 public:
  explicit MaxFlow(std::size_t nodes) : first_(nodes, kNone) {}

  /// Adds an edge and returns its id.
  std::size_t add_edge(std::size_t from, std::size_t to, Int128 capacity);
  Int128 run(std::size_t source, std::size_t sink);
  /// @pre run() was called
  Int128 flow(std::size_t edge) const { return edges_[edge ^ 1].left; }
  /// True if the node is reachable from the source in the residual graph (the source side of a
  /// minimum cut). @pre run() was called
  bool on_source_side(std::size_t node) const { return level_[node] >= 0; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Edge {
    std::size_t to, next;
    Int128 left;
  };
  bool find_levels(std::size_t source, std::size_t sink);
  Int128 push(std::size_t source, std::size_t sink);

  std::vector<Edge> edges_;
  std::vector<std::size_t> first_, current_;
  std::vector<int> level_;
};

std::size_t MaxFlow::add_edge(std::size_t from, std::size_t to, Int128 capacity) {
  edges_.push_back({to, first_[from], capacity});
  first_[from] = edges_.size() - 1;
  edges_.push_back({from, first_[to], 0});
  first_[to] = edges_.size() - 1;
  return edges_.size() - 2;
}

bool MaxFlow::find_levels(std::size_t source, std::size_t sink) {
  level_.assign(first_.size(), -1);
  level_[source] = 0;
  std::vector<std::size_t> queue{source};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (std::size_t e = first_[queue[i]]; e != kNone; e = edges_[e].next) {
      if (edges_[e].left == 0 || level_[edges_[e].to] >= 0) continue;
      level_[edges_[e].to] = level_[queue[i]] + 1;
      queue.push_back(edges_[e].to);
    }
  }
  return level_[sink] >= 0;
}

/// Sends flow along one path of the level graph and returns it; zero if no path is left. Iterative,
/// because graphs may be deep.
Int128 MaxFlow::push(std::size_t source, std::size_t sink) {
  std::vector<std::size_t> path;
  std::size_t node = source;
  while (node != sink) {
    std::size_t& e = current_[node];
    while (e != kNone && (edges_[e].left == 0 || level_[edges_[e].to] != level_[node] + 1))
      e = edges_[e].next;
    if (e != kNone) {
      path.push_back(e);
      node = edges_[e].to;
      continue;
    }
    if (path.empty()) return 0;
    node = edges_[path.back() ^ 1].to;
    current_[node] = edges_[current_[node]].next;
    path.pop_back();
  }
  Int128 least = edges_[path[0]].left;
  for (std::size_t e : path) least = std::min(least, edges_[e].left);
  for (std::size_t e : path) {
    edges_[e].left -= least;
    edges_[e ^ 1].left += least;
  }
  return least;
}

Int128 MaxFlow::run(std::size_t source, std::size_t sink) {
  Int128 total = 0;
  while (find_levels(source, sink)) {
    current_ = first_;
    while (const Int128 sent = push(source, sink)) total += sent;
  }
  return total;
}

/// Ranks that hold the same supplies.
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

/// Bytes of one supply that one atom sends, as a fraction with the denominator of the solution.
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

  /// Solves one max-flow of `block` into `atoms` with the load of every rank at most bytes / ranks.
  /// If all bytes fit, adds their parts to `parts` and returns nothing; otherwise returns the
  /// supplies of the minimum cut.
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

  /// Finds the supplies with the highest unavoidable load per rank, fixes their parts, and removes
  /// them and their atoms from the problem.
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
