// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi_ways.h"

#include <mpi.h>

#include <cstring>
#include <string>
#include <vector>

#include "reshard/plan/moves.h"

namespace reshard::bench {
namespace {

/// One side of a copy: runs of bytes, starting at `base`.
struct Side {
  const std::byte* base;
  const StridedCopy* copy;
  bool is_source;

  Index stride(int loop) const {
    const auto& l = copy->loops[static_cast<std::size_t>(loop)];
    return is_source ? l.src_stride : l.dst_stride;
  }
  const std::byte* begin() const {
    return base + (is_source ? copy->src_offset : copy->dst_offset);
  }
};

/// The runs of one side as a derived datatype: a vector in a vector, as deep as the copy's loops.
MPI_Datatype datatype_of(const Side& side) {
  MPI_Datatype type;
  MPI_Type_contiguous(static_cast<int>(side.copy->run_bytes), MPI_BYTE, &type);
  for (int i = side.copy->num_loops; i-- > 0;) {
    MPI_Datatype outer;
    const auto count = static_cast<int>(side.copy->loops[static_cast<std::size_t>(i)].count);
    MPI_Type_create_hvector(count, 1, side.stride(i), type, &outer);
    MPI_Type_free(&type);
    type = outer;
  }
  return type;
}

/// All copies between this rank and one peer.
struct Peer {
  std::vector<Move> moves;
  std::vector<Side> sides;
  Index bytes = 0;
  std::vector<std::byte> packed;

  MPI_Datatype datatype() const {
    std::vector<MPI_Datatype> types;
    std::vector<MPI_Aint> places;
    const std::vector<int> ones(sides.size(), 1);
    for (const Side& side : sides) {
      types.push_back(datatype_of(side));
      places.emplace_back();
      MPI_Get_address(side.begin(), &places.back());
    }
    MPI_Datatype all;
    MPI_Type_create_struct(static_cast<int>(types.size()), ones.data(), places.data(), types.data(),
                           &all);
    MPI_Type_commit(&all);
    for (MPI_Datatype& type : types) MPI_Type_free(&type);
    return all;
  }
};

/// Copies runs to or from a packed buffer, outer loops first.
void pack_loops(const Side& side, int loop, std::byte* at, std::byte*& packed, bool unpack) {
  if (loop == side.copy->num_loops) {
    const auto n = static_cast<std::size_t>(side.copy->run_bytes);
    std::memcpy(unpack ? at : packed, unpack ? packed : at, n);
    packed += n;
    return;
  }
  for (Index i = 0; i < side.copy->loops[static_cast<std::size_t>(loop)].count; ++i)
    pack_loops(side, loop + 1, at + i * side.stride(loop), packed, unpack);
}

void pack(Peer& peer, bool unpack) {
  std::byte* packed = peer.packed.data();
  for (const Side& side : peer.sides)
    pack_loops(side, 0, const_cast<std::byte*>(side.begin()), packed, unpack);
}

class RealMpiWays final : public MpiWays {
 public:
  explicit RealMpiWays(const RankJob& job)
      : job_(job),
        sends_(static_cast<std::size_t>(job.size())),
        recvs_(static_cast<std::size_t>(job.size())) {}

  ~RealMpiWays() override {
    int over = 0;
    MPI_Finalized(&over);
    for (MPI_Datatype& type : types_)
      if (over == 0 && type != MPI_BYTE) MPI_Type_free(&type);
  }

  Result<> prepare() {
    int ready = 0;
    MPI_Initialized(&ready);
    if (ready == 0) MPI_Init(nullptr, nullptr);
    const RankPlan part = job_.planner->rank_plan(job_.rank());
    RESHARD_TRY(add(part.sends, true, sends_));
    RESHARD_TRY(add(part.recvs, false, recvs_));
    RESHARD_TRY(add(part.locals, true, sends_));
    RESHARD_TRY(add(part.locals, false, recvs_));
    for (const auto* peers : {&sends_, &recvs_})
      for (const Peer& peer : *peers) {
        counts_.push_back(peer.sides.empty() ? 0 : 1);
        types_.push_back(peer.sides.empty() ? MPI_BYTE : peer.datatype());
      }
    return {};
  }

  Contender alltoallw() override {
    return together(job_, "alltoallw", [this]() -> Result<> {
      const std::vector<int> zeros(sends_.size(), 0);
      const std::size_t n = sends_.size();
      const int rc =
          MPI_Alltoallw(MPI_BOTTOM, counts_.data(), zeros.data(), types_.data(), MPI_BOTTOM,
                        counts_.data() + n, zeros.data(), types_.data() + n, MPI_COMM_WORLD);
      return rc == MPI_SUCCESS ? Result<>() : fail(Code::io, "MPI_Alltoallw failed");
    });
  }

  Contender isend() override {
    for (auto* peers : {&sends_, &recvs_})
      for (Peer& peer : *peers) peer.packed.resize(static_cast<std::size_t>(peer.bytes));
    return together(job_, "isend", [this]() -> Result<> {
      std::vector<MPI_Request> requests;
      for (std::size_t r = 0; r < recvs_.size(); ++r) post(recvs_[r], r, false, requests);
      for (std::size_t r = 0; r < sends_.size(); ++r) {
        pack(sends_[r], false);
        post(sends_[r], r, true, requests);
      }
      MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
      for (Peer& peer : recvs_) pack(peer, true);
      return {};
    });
  }

 private:
  Result<> add(const std::vector<Transfer>& transfers, bool sends, std::vector<Peer>& peers) {
    std::vector<std::vector<Transfer>> by_peer(peers.size());
    for (const Transfer& t : transfers) by_peer[(sends ? t.dst : t.src).index()].push_back(t);
    for (std::size_t r = 0; r < peers.size(); ++r) {
      if (by_peer[r].empty()) continue;
      Peer& peer = peers[r];
      peer.moves = RESHARD_TRY(copy_ops(*job_.planner, by_peer[r]));
      for (const Move& m : peer.moves) {
        if (m.conversion.converts()) return fail(Code::unsupported, "MPI converts no values");
        const RankBuffers& buffers = sends ? *job_.source : *job_.target;
        const std::byte* base = buffers.at(job_.rank(), sends ? m.src_slot : m.dst_slot);
        peer.sides.push_back({base, &m.copy, sends});
        peer.bytes += m.copy.bytes();
      }
    }
    return {};
  }

  static void post(Peer& peer, std::size_t rank, bool send, std::vector<MPI_Request>& requests) {
    // Counts are int: pieces of at most 1 GiB.
    constexpr std::size_t kPiece = std::size_t{1} << 30;
    for (std::size_t at = 0; at < peer.packed.size(); at += kPiece) {
      const int n = static_cast<int>(std::min(kPiece, peer.packed.size() - at));
      requests.emplace_back();
      std::byte* const data = peer.packed.data() + at;
      const int to = static_cast<int>(rank);
      if (send)
        MPI_Isend(data, n, MPI_BYTE, to, 0, MPI_COMM_WORLD, &requests.back());
      else
        MPI_Irecv(data, n, MPI_BYTE, to, 0, MPI_COMM_WORLD, &requests.back());
    }
  }

  const RankJob& job_;
  std::vector<Peer> sends_, recvs_;
  std::vector<int> counts_;
  std::vector<MPI_Datatype> types_;
};

}  // namespace

Result<std::unique_ptr<MpiWays>> MpiWays::make(const RankJob& job) {
  auto ways = std::make_unique<RealMpiWays>(job);
  RESHARD_TRY(ways->prepare());
  return std::unique_ptr<MpiWays>(std::move(ways));
}

}  // namespace reshard::bench
